"""Which single assumption turns a verdict around, and how far away is that?

A verdict is one sentence of the plan: a lever helps or does not, memory holds the load or does not, prefill
keeps up or does not. One assumption at a time is made larger and smaller, everything else staying as it is,
until the verdict turns; bisection then finds the factor.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kvlib.planner.choose import Plan, helps
from kvlib.planner.levers import available
from kvlib.planner.outcome import outcome
from kvlib.planner.setting import Setting
from kvlib.specs.checks import one_of

MOST = 16
BISECTIONS = 5
MEMORY, PREFILL = "memory", "prefill"


def _bandwidth(setting: Setting, factor: float) -> Setting:
    stores = (
        replace(store, link=replace(store.link, bytes_per_s=factor * store.link.bytes_per_s))
        for store in setting.stores
    )
    return replace(setting, stores=tuple(stores))


def _prefill_speed(setting: Setting, factor: float) -> Setting:
    return replace(setting, gpu=replace(setting.gpu, peak_flops_per_s=factor * setting.gpu.peak_flops_per_s))


ASSUMPTIONS: dict[str, Callable[[Setting, float], Setting]] = {
    "hit ratio": lambda setting, factor: replace(setting, demand=setting.demand.with_hits(factor)),
    "link bandwidth": _bandwidth,
    "prefill speed": _prefill_speed,
    "output length": lambda setting, factor: replace(setting, demand=setting.demand.with_outputs(factor)),
}


@dataclass(frozen=True)
class Flip:
    """Where a verdict turns.

    Attributes
    ----------
    assumption : str
    factor : float or None
        The assumption times this turns the verdict; None if nothing within a factor of `MOST` does.
    """

    assumption: str
    factor: float | None


def verdicts(setting: Setting) -> list[str]:
    """What can be asked of a plan: its levers, memory and prefill."""
    return [*(lever.key for lever in available(setting)), MEMORY, PREFILL]


def holds(made: Plan, verdict: str, setting: Setting) -> bool:
    """Whether a lever helps, memory suffices or prefill keeps up, in a setting like the plan's."""
    one_of("verdict", verdict, verdicts(made.setting))
    if verdict == MEMORY:
        return outcome(setting, made.levers, made.block_size).fits
    if verdict == PREFILL:
        return outcome(setting, made.levers, made.block_size).busy < 1
    return helps(partial(outcome, setting), made.levers, verdict, made.block_size)


def flips(made: Plan, verdict: str) -> list[Flip]:
    """For every assumption the nearest factor that turns the verdict.

    Raises
    ------
    ConfigError
        For a verdict that `verdicts` does not list.

    Examples
    --------
    >>> from kvlib.planner import Store, plan, returning
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> asks = returning(prompt_tokens=30_000, new_tokens=100, output_tokens=100, contexts=40)
    >>> far = (Store("network", 1e12, get_link("net-10g")),)
    >>> made = plan(Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), asks, load_per_s=0.5, stores=far))
    >>> turning = [flip for flip in flips(made, "network") if flip.factor]
    >>> "network" in made.levers, [(flip.assumption, round(flip.factor, 1)) for flip in turning]
    (False, [('link bandwidth', 4.3), ('prefill speed', 0.2)])
    """
    today = holds(made, verdict, made.setting)

    def turned(assumption: str, factor: float) -> bool:
        return holds(made, verdict, ASSUMPTIONS[assumption](made.setting, factor)) is not today

    return [Flip(name, _nearest(lambda factor, name=name: turned(name, factor))) for name in ASSUMPTIONS]


def _nearest(turned: Callable[[float], bool]) -> float | None:
    """The factor closest to 1 (by ratio) at which something has turned, to within about two percent."""
    step = 2.0
    while step <= MOST:
        for outer in (step, 1 / step):
            if turned(outer):
                return _between(turned, outer * 2 if outer < 1 else outer / 2, outer)
        step *= 2
    return None


def _between(turned: Callable[[float], bool], inner: float, outer: float) -> float:
    """Bisect by ratio between a factor that has not turned and one that has."""
    for _ in range(BISECTIONS):
        middle = math.sqrt(inner * outer)
        inner, outer = (inner, middle) if turned(middle) else (middle, outer)
    return outer
