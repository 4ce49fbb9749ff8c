"""An explorer: one pure function, declared once, with four faces.

The notebook face (`kvlib.explore.notebook`), the page face (`kvlib.explore.page`), the text face
(`Explorer.text`) and the test face (`REGISTRY`) all go through `Explorer.view`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kvlib.errors import ConfigError
from kvlib.explore.controls import Control
from kvlib.explore.view import View, dumps

DIRECTIONS = ("rises", "falls", "changes")


@dataclass(frozen=True)
class Option:
    """One answer to a prediction, and what to say to the reader who picked it."""

    text: str
    reply: str


@dataclass(frozen=True)
class Prediction:
    """A question to commit to before playing. It never locks anything.

    Parameters
    ----------
    options : sequence of Option
        Three or four concrete answers, the popular wrong one among them.
    answer : int
        Index of the right option, computed, not typed, wherever a run decides it.
    """

    question: str
    options: tuple[Option, ...]
    answer: int

    def __post_init__(self):
        object.__setattr__(self, "options", tuple(self.options))
        if self.answer not in range(len(self.options)):
            raise ConfigError(f"answer: got {self.answer!r}, expected an index below {len(self.options)}")


@dataclass(frozen=True)
class Explorer:
    """A picture with controls.

    Parameters
    ----------
    id : str
        ``"<figures module>.<function>"``, for example ``"kv_cache.bytes_per_token"``.
    function : callable
        Pure: keyword arguments named like the controls in, a `View` out.
    controls : tuple of Control
        The first is always in sight, the others stand under "More controls".
    predict : callable, optional
        Returns the `Prediction`; called late because its answer may take a run.
    expects : mapping
        Control name → ``"rises:<number>"``, ``"falls:<number>"`` or ``"changes:<number>"``: what moving
        that control alone does to one of the view's `numbers`. A test holds it.

    Examples
    --------
    >>> wall = REGISTRY["kv_cache.wall"]
    >>> wall.id, wall.view() == wall.view()
    ('kv_cache.wall', True)
    """

    id: str
    function: Callable[..., View]
    title: str
    controls: tuple[Control, ...]
    predict: Callable[[], Prediction] | None = None
    expects: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        names = [c.name for c in self.controls]
        wanted = list(inspect.signature(self.function).parameters)
        if names != wanted:
            raise ConfigError(f"{self.id}: controls {names} do not match the function's arguments {wanted}")
        for name, direction in self.expects.items():
            if name not in names or direction.partition(":")[0] not in DIRECTIONS:
                raise ConfigError(f"{self.id}: expects {name!r}: {direction!r} names no control or no direction")

    @property
    def defaults(self) -> dict:
        return {c.name: c.default for c in self.controls}

    def view(self, **params) -> View:
        """The view for `params`; controls left out stand at their defaults.

        Raises
        ------
        ConfigError
            An unknown control, or a value the control does not accept.
        ValueError
            Whatever the function itself refuses, with its own message.
        """
        by_name = {c.name: c for c in self.controls}
        for name in params:
            if name not in by_name:
                raise ConfigError(f"{self.id} has no control {name!r}; it has {', '.join(by_name)}")
        checked = {name: by_name[name].check(value) for name, value in params.items()}
        return self.function(**{**self.defaults, **checked})

    def json(self, params_json: str = "{}") -> str:
        """The view as one JSON text, or ``{"error": message}`` where the input is refused.

        This is the single entry that the page's worker, the tests and the build share.
        """
        try:
            params = json.loads(params_json)
        except (ValueError, RecursionError) as refusal:
            return dumps({"error": str(refusal)})
        if not isinstance(params, dict):
            return dumps({"error": f"parameters: got {params_json[:40]!r}, expected a JSON object"})
        return dumps(self.state(params))

    def state(self, params: dict) -> dict:
        """The view as plain JSON values, or ``{"error": message}``."""
        try:
            return self.view(**params).to_dict()
        except ValueError as refusal:
            return {"error": str(refusal)}

    def star(self) -> dict[str, list[dict]]:
        """For each discrete control, the states at all its positions, the others at their defaults."""
        return {
            c.name: [self.state({c.name: position}) for position in c.positions]
            for c in self.controls
            if c.positions is not None
        }

    def text(self) -> str:
        """The default state in words and numbers: for nbval, screen readers and print."""
        return self.view().text()


def explorer(*, title: str, controls, predict=None, expects=None):
    """Declare the decorated function an explorer and register it.

    The function keeps working as a plain function. See CONTRIBUTING.md.

    Examples
    --------
    >>> REGISTRY["kv_cache.wall"].function.__name__       # declared as wall in kvlib/figures/kv_cache.py
    'wall'
    """

    def register(function):
        module = function.__module__.rpartition(".")[2]
        made = Explorer(f"{module}.{function.__name__}", function, title, tuple(controls), predict, expects or {})
        REGISTRY.add(made)
        return function

    return register


class Registry(Mapping):
    """All items declared below ``kvlib.figures``, by id. A look-up imports only its own module."""

    def __init__(self):
        self._items = {}

    def add(self, item):
        self._items[item.id] = item

    def find(self, item_id: str):
        """The item, or None."""
        if not isinstance(item_id, str):
            return None
        module = item_id.partition(".")[0]
        if item_id not in self._items and module in _figure_modules():
            importlib.import_module(f"kvlib.figures.{module}")
        return self._items.get(item_id)

    def __getitem__(self, item_id: str):
        item = self.find(item_id)
        if item is None:
            raise ConfigError(f"nothing is called {item_id!r} here; known: {', '.join(self)}")
        return item

    def __iter__(self) -> Iterator[str]:
        for module in _figure_modules():
            importlib.import_module(f"kvlib.figures.{module}")
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _figure_modules() -> list[str]:
    package = importlib.import_module("kvlib.figures")
    return [m.name for m in pkgutil.iter_modules(package.__path__)]


REGISTRY = Registry()
