"""The controls an explorer can have: each knows its positions, its default and what it accepts.

A control with ``positions`` is discrete: the rendered page precomputes one state per position.
``Text`` and ``File`` have none, so they always need Python (a kernel, or the browser's worker).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvlib.errors import ConfigError

MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Control:
    """What every control has.

    Parameters
    ----------
    name : str
        The keyword argument of the explorer's function that this control sets.
    label : str
        What the reader sees; a few words, without the unit.
    """

    name: str
    label: str

    kind = "none"
    positions: tuple | None = field(default=None, init=False)

    def check(self, value):
        """Return `value`, or raise `ConfigError` saying what was expected."""
        for position in self.positions:
            # True == 1 in Python, so a toggle's True must not pass for the number 1.
            if position == value and isinstance(position, bool) == isinstance(value, bool):
                return position
        shown = ", ".join(repr(p) for p in self.positions[:12])
        more = ", …" if len(self.positions) > 12 else ""
        raise ConfigError(f"{self.name}: got {value!r}, expected one of {shown}{more}")

    def spec(self) -> dict:
        """What the page needs to draw the control, as plain JSON values."""
        spec = {"name": self.name, "label": self.label, "kind": self.kind, "default": self.default}
        if self.positions is not None:
            spec["positions"] = list(self.positions)
            spec["texts"] = [self.text(p) for p in self.positions]
        return spec

    def text(self, value) -> str:
        """How the page and the notebook spell `value`."""
        return str(value)


def spell(value, unit: str = "") -> str:
    """Spell a number for a reader: thousands separated, unit behind it.

    >>> spell(12596, "slots"), spell(0.5), spell(2.0, "GB/s"), spell(2e10)
    ('12,596 slots', '0.5', '2 GB/s', '20,000,000,000')
    """
    if isinstance(value, float) and math.isfinite(value):
        digits = ".10g" if abs(value) < 1e10 else ".0f"
        text = f"{value:,{digits}}" if abs(value) < 1e15 else f"{value:.4g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    else:
        text = str(value)
    return f"{text} {unit}" if unit else text


@dataclass(frozen=True)
class Choice(Control):
    """One of a few values, drawn as a slider where they are numbers and as a list where they are words.

    Parameters
    ----------
    options : sequence
        The values in order, or ``(value, text)`` pairs.
    default : object
        One of the values.

    Examples
    --------
    >>> block_size = Choice("block_size", "Block size", [8, 16, 32], default=16, unit="tokens")
    >>> block_size.kind, block_size.text(32)
    ('slider', '32 tokens')
    """

    options: tuple = ()
    default: object = None
    unit: str = ""

    def __post_init__(self):
        pairs = [o if isinstance(o, tuple) else (o, spell(o, self.unit)) for o in self.options]
        object.__setattr__(self, "positions", tuple(value for value, _ in pairs))
        object.__setattr__(self, "options", tuple(pairs))
        if not pairs:
            raise ConfigError(f"{self.name}: a choice needs at least one option")
        self.check(self.default)

    @property
    def kind(self) -> str:
        return "list" if any(isinstance(p, str) for p in self.positions) else "slider"

    def text(self, value) -> str:
        return dict(self.options)[value]


@dataclass(frozen=True)
class Range(Control):
    """A number between two bounds, in equal steps or (``log=True``) in equal ratios.

    Parameters
    ----------
    low, high : int or float
        Both bounds are positions.
    count : int
        How many positions there are, bounds included.
    log : bool
        Equal ratios instead of equal steps. Positions are then rounded to two significant digits, so
        that a reader meets round numbers.
    default : int or float
        Becomes a position of its own where it is not one already.

    Examples
    --------
    >>> Range("load", "Load", 0.5, 4.0, 8, default=2.0, unit="requests/s").positions
    (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    >>> Range("n", "Tokens", 1, 1000, 4, default=10, log=True).positions
    (1, 10, 100, 1000)
    """

    low: float = 0
    high: float = 1
    count: int = 11
    default: float = 0
    unit: str = ""
    log: bool = False

    kind = "slider"

    def __post_init__(self):
        if self.count < 2 or not self.low < self.high or (self.log and self.low <= 0):
            raise ConfigError(f"{self.name}: a range needs low < high, two positions or more, and low > 0 if log")
        if not self.low <= self.default <= self.high:
            raise ConfigError(f"{self.name}: default {self.default!r} lies outside {self.low!r} … {self.high!r}")
        raw = [float(f"{self._at(i / (self.count - 1)):.{2 if self.log else 6}g}") for i in range(self.count)]
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        inner = [round(x) if whole else x for x in raw[1:-1]]
        object.__setattr__(self, "positions", tuple(sorted({*inner, self.low, self.high, self.default})))

    def _at(self, share: float) -> float:
        if self.log:
            return self.low * (self.high / self.low) ** share
        return self.low + (self.high - self.low) * share

    def text(self, value) -> str:
        return spell(value, self.unit)


@dataclass(frozen=True)
class Toggle(Control):
    """On or off, drawn as a check box.

    Examples
    --------
    >>> Toggle("shared", "Share the prefix").text(True)
    'on'
    """

    default: bool = False

    kind = "toggle"

    def __post_init__(self):
        object.__setattr__(self, "positions", (False, True))
        self.check(self.default)

    def text(self, value) -> str:
        return "on" if value else "off"


@dataclass(frozen=True)
class Stepper(Control):
    """The frames 0 … `last` of a process: back, forward and play.

    Examples
    --------
    >>> Stepper("step", "Step", last=3).positions
    (0, 1, 2, 3)
    """

    last: int = 1
    default: int = 0

    kind = "stepper"

    def __post_init__(self):
        object.__setattr__(self, "positions", tuple(range(self.last + 1)))
        self.check(self.default)

    def text(self, value) -> str:
        return f"{value} of {self.last}"


@dataclass(frozen=True)
class Text(Control):
    """Free text up to `longest` characters; always computed live.

    Examples
    --------
    >>> Text("prompt", "Prompt", longest=400).check("Once upon a time")
    'Once upon a time'
    """

    default: str = ""
    longest: int = 400

    kind = "text"

    def check(self, value):
        if not isinstance(value, str) or len(value) > self.longest:
            raise ConfigError(f"{self.name}: got {str(value)[:40]!r}, expected text of at most {self.longest} characters")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{self.name}: got half a character at position {error.start}, expected whole ones") from error
        return value

    def spec(self) -> dict:
        return {**super().spec(), "longest": self.longest}


@dataclass(frozen=True)
class File(Control):
    """A file the reader drops. It is read where they are and never uploaded.

    The explorer's function gets the path of a private copy (in the kernel a temporary file, in
    the page a file in the worker's own memory), or ``""`` while no file has been given.

    Parameters
    ----------
    accept : str
        Name endings, as in ``".json"`` or ``".jsonl,.csv,.gz"``.
    replaces : str
        The control whose choice the file stands in for, if any: choosing there gives the file up.

    Examples
    --------
    >>> File("config", "Your config.json", accept=".json").default
    ''
    """

    accept: str = ""
    replaces: str = ""
    default: str = ""

    kind = "file"

    def check(self, value):
        if not isinstance(value, str):
            raise ConfigError(f"{self.name}: got {value!r}, expected the path of a file")
        return value

    def spec(self) -> dict:
        return {**super().spec(), "accept": self.accept, "replaces": self.replaces, "max_bytes": MAX_FILE_BYTES}
