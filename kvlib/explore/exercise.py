"""Self-checked exercises: numbers drawn from a seed, an answer field, and a reply that helps.

The seed stands in the page link, so a class can compare methods without copying answers. The same
comparison (`check_answer`) is done by the page script; a browser test holds the two together.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context

from kvlib.errors import ConfigError
from kvlib.explore.controls import Control, spell
from kvlib.explore.explorer import Registry
from kvlib.explore.view import dumps

FIRST_SEED = 1
STORED_SEEDS = 12
SLIP_TOLERANCE = 0.005


@dataclass(frozen=True)
class Slip:
    """A usual wrong answer and what to say to the reader who gives it."""

    value: float
    reply: str


@dataclass(frozen=True)
class Problem:
    """One draw of a numeric exercise.

    Parameters
    ----------
    question : str
        Complete sentences, numbers and units included.
    answer : int or float
        Computed by kvlib.
    unit : str
        What the answer counts.
    solution : str
        How to get there, shown on request.
    tolerance : float
        Relative; 0 for arithmetic, which must be exact.
    slips : sequence of Slip
        Usual mistakes. One that equals the answer for this draw is dropped.

    Examples
    --------
    >>> Problem("How many blocks of 16 do 53 tokens take?", 4, "blocks", "53 / 16, rounded up.").answer
    4
    """

    question: str
    answer: float
    unit: str
    solution: str
    tolerance: float = 0.0
    slips: tuple[Slip, ...] = ()

    def to_dict(self) -> dict:
        kept = [s for s in self.slips if not _close(s.value, self.answer, max(self.tolerance, SLIP_TOLERANCE))]
        return {
            "question": self.question,
            # Not rounded: an exact answer may have more than five digits.
            "answer": self.answer,
            "unit": self.unit,
            "solution": self.solution,
            "tolerance": self.tolerance,
            "slips": [{"value": s.value, "reply": s.reply} for s in kept],
        }


@dataclass(frozen=True)
class Verdict:
    """What a run says about a setting the reader chose."""

    right: bool
    reply: str


@dataclass(frozen=True)
class Search:
    """One draw of a "find a setting" exercise: the reader moves controls and a run judges them.

    Parameters
    ----------
    judge : callable
        Keyword arguments named like the controls in, a `Verdict` out.
    known : dict
        A setting that passes, so that a test can show one is reachable.

    Examples
    --------
    >>> from kvlib.explore import Toggle
    >>> judge = lambda on: Verdict(on, "Light." if on else "It is dark.")
    >>> lamp = Search("Switch it on.", (Toggle("on", "Lamp"),), judge, {"on": True}, "One click.")
    >>> lamp.judge(**lamp.known).right
    True
    """

    question: str
    controls: tuple[Control, ...]
    judge: Callable[..., Verdict]
    known: dict
    solution: str

    def to_dict(self) -> dict:
        return {
            "question": self.question,
            "controls": [c.spec() for c in self.controls],
            "solution": self.solution,
        }

    def check(self, params: dict) -> Verdict:
        by_name = {c.name: c for c in self.controls}
        if set(params) != set(by_name):
            raise ConfigError(f"setting: got {sorted(params)}, expected {sorted(by_name)}")
        return self.judge(**{name: by_name[name].check(value) for name, value in params.items()})


@dataclass(frozen=True)
class Exercise:
    """A question that can be drawn again with other numbers."""

    id: str
    title: str
    draw_from: Callable[[random.Random], Problem | Search]

    def draw(self, seed: int = FIRST_SEED) -> Problem | Search:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 < seed < 2**31:
            raise ConfigError(f"seed: got {seed!r}, expected a whole number from 1 to {2**31 - 1}")
        return self.draw_from(random.Random(seed))

    def stored(self) -> list[dict]:
        """The draws of the seeds 1 … `STORED_SEEDS`, which the page answers without Python."""
        return [self.draw(seed).to_dict() for seed in range(FIRST_SEED, FIRST_SEED + STORED_SEEDS)]

    def json(self, request_json: str = "{}") -> str:
        """``{"seed": s}`` gives the draw, ``{"seed": s, "params": {...}}`` the verdict on a setting."""
        try:
            request = json.loads(request_json)
            if not isinstance(request, dict):
                raise ConfigError(f"request: got {request_json[:40]!r}, expected a JSON object")
            drawn = self.draw(request.get("seed", FIRST_SEED))
            if "params" not in request:
                return dumps(drawn.to_dict())
            if not (isinstance(drawn, Search) and isinstance(request["params"], dict)):
                raise ConfigError(f"params: got {request['params']!r}, expected the settings of an exercise that asks for one")
            verdict = drawn.check(request["params"])
            return dumps({"right": verdict.right, "reply": verdict.reply})
        except (ValueError, RecursionError) as refusal:
            return dumps({"error": str(refusal)})

    def text(self) -> str:
        return f"{self.title}\n\n{self.draw().question}"


def parse_number(text: str, unit: str = "") -> float:
    """Read a number as people type it: thousands separators, a percent sign, an exponent.

    The unit may stand behind it. Where the answer is asked for in per cent, the percent sign divides nothing.

    >>> parse_number("1,677,721,600"), parse_number("44 %"), parse_number("1.68e9"), parse_number("44 %", "%")
    (1677721600.0, 0.44, 1680000000.0, 44.0)
    >>> parse_number("131072 bytes", "bytes")
    131072.0
    """
    bare = text.strip() if unit == "%" else text.strip().removesuffix(unit)
    short = bare.replace(",", "").replace("_", "").replace(" ", "")
    percent = short.endswith("%")
    try:
        value = float(short.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"answer: got {text!r}, expected a number such as 1200, 1.2e3 or 44 %")
    return value / 100 if percent and unit != "%" else value


def check_answer(problem: Problem, text: str) -> Verdict:
    """Say right, or which slip it was, or how far off.

    Examples
    --------
    >>> p = Problem("2 + 2?", 4, "", "Count.", slips=(Slip(22, "You glued the digits together."),))
    >>> check_answer(p, "4").right, check_answer(p, "22").reply
    (True, 'You glued the digits together.')
    """
    try:
        given = parse_number(text, problem.unit)
    except ConfigError as refusal:
        return Verdict(False, str(refusal))
    if _close(given, problem.answer, problem.tolerance):
        return Verdict(True, "Right.")
    for slip in problem.to_dict()["slips"]:
        if _close(given, slip["value"], max(problem.tolerance, SLIP_TOLERANCE)):
            return Verdict(False, slip["reply"])
    return Verdict(False, _how_far(given, problem.answer))


def _close(given: float, wanted: float, tolerance: float) -> bool:
    # The last term forgives the last place of a typed decimal fraction, not a whole unit.
    return abs(given - wanted) <= (tolerance + 1e-12) * abs(wanted)


def _how_far(given: float, wanted: float) -> str:
    if wanted == 0 or given * wanted <= 0:
        return "Not yet: the sign or the zero is wrong."
    ratio = given / wanted
    side = "high" if ratio > 1 else "low"
    if max(ratio, 1 / ratio) >= 1.5:
        return f"Not yet: too {side} by a factor of {_four_digits(max(ratio, 1 / ratio))}."
    return f"Not yet: too {side} by {_four_digits(abs(ratio - 1) * 100)} %."


def _four_digits(value: float) -> str:
    """As the page's ``toPrecision(4)``, which rounds a tie up where Python's formats round it to even."""
    return spell(float(Context(prec=4, rounding=ROUND_HALF_UP).create_decimal_from_float(value)))


EXERCISES = Registry()


def exercise(*, title: str):
    """Declare the decorated function (a `random.Random` in, a `Problem` or `Search` out) an exercise.

    Examples
    --------
    >>> EXERCISES["primer_batch.ready_1"].id        # declared as ready_1 in kvlib/figures/primer_batch.py
    'primer_batch.ready_1'
    """

    def register(function):
        module = function.__module__.rpartition(".")[2]
        EXERCISES.add(Exercise(f"{module}.{function.__name__}", title, function))
        return function

    return register
