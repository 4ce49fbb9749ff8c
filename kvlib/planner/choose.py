"""Which levers to use: try them together, drop what is not missed, and show what each one is worth."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from kvlib.planner.demand import BLOCK_SIZES
from kvlib.planner.levers import BLOCKS, Lever, available
from kvlib.planner.outcome import Outcome, outcome
from kvlib.planner.setting import Setting

# A lever has to move the time to the first token by more than this to be worth its trouble.
WORTH = 0.02
ROUNDS = 2
# What becomes of one setting with some levers on and blocks of some size.
Tried = Callable[[frozenset[str], int], Outcome]


@dataclass(frozen=True)
class Step:
    """One step of the waterfall.

    Attributes
    ----------
    lever : Lever
    before_s, after_s : float
        Mean time to the first token on an idle machine. For a lever of the plan: with the levers above it.
        For one left out: the plan's time, and what it would become.
    used : bool
        Part of the plan.
    """

    lever: Lever
    before_s: float
    after_s: float
    used: bool


@dataclass(frozen=True)
class Plan:
    """What to do, and what to expect.

    Attributes
    ----------
    setting : Setting
    levers : frozenset of str
        Keys of the levers to use.
    block_size : int
    no_cache, outcome : Outcome
        Without any lever, and with the plan.
    steps : tuple of Step
        From "no cache" to the plan, then the levers that would not help.
    """

    setting: Setting
    levers: frozenset[str]
    block_size: int
    no_cache: Outcome
    outcome: Outcome
    steps: tuple[Step, ...]


def is_better(ours: Outcome, other: Outcome) -> bool:
    """Whether a change is worth its trouble: it makes the load servable, or the first token come sooner."""
    if ours.serves != other.serves:
        return ours.serves
    if ours.fits != other.fits:
        return ours.fits
    return ours.ttft_s < (1 - WORTH) * other.ttft_s


def helps(tried: Tried, levers: frozenset[str], key: str, block_size: int) -> bool:
    """Whether a lever that is on would be missed, or one that is off is worth adding to the others."""
    if key in levers:
        return is_better(tried(levers, block_size), tried(levers - {key}, block_size))
    return is_better(tried(with_lever(levers, key), block_size), tried(levers, block_size))


def with_lever(levers: frozenset[str], key: str) -> frozenset[str]:
    """The levers and one more; every other one only serves a cache of prefixes."""
    return levers | {key} if key == "quantized" else levers | {key, "prefix"}


def best_block(tried: Tried, levers: frozenset[str]) -> int:
    """The smallest block that nobody beats by enough: small ones find more, large ones move faster."""
    results = {size: tried(levers, size) for size in BLOCK_SIZES}
    best = min(results.values(), key=lambda r: (not r.serves, not r.fits, r.ttft_s))
    return next(size for size, result in results.items() if not is_better(best, result))


def plan(setting: Setting) -> Plan:
    """Choose the levers and the block size for one machine and one demand.

    All levers that the machine has start switched on. From the last to the first, each that is not missed is
    switched off; then each gets a second chance, for two that stood in each other's way. Another such round
    drops what only made sense beside something that is gone, such as a bitstream without a link.

    Raises
    ------
    ConfigError
        As `outcome`.

    Examples
    --------
    >>> from kvlib.planner import Store, returning
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> asks = returning(prompt_tokens=30_000, new_tokens=100, output_tokens=100, contexts=40)
    >>> stores = (Store("host", 512e9, get_link("pcie5-x16")), Store("network", 1e12, get_link("net-10g")))
    >>> setting = Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), asks, load_per_s=1.0, stores=stores)
    >>> made = plan(setting)
    >>> sorted(made.levers), [step.lever.key for step in made.steps if not step.used]
    (['copies', 'host', 'overlap', 'prefix', 'quantized'], ['network', 'coded'])
    """
    tried = cache(partial(outcome, setting))
    known = available(setting)
    levers = frozenset(lever.key for lever in known)
    block_size = best_block(tried, levers)
    for _ in range(ROUNDS):
        for lever in reversed(known):
            if lever.key in levers and not helps(tried, levers, lever.key, block_size):
                levers -= {lever.key}
        for lever in known:
            if lever.key not in levers and helps(tried, levers, lever.key, block_size):
                levers = with_lever(levers, lever.key)
    block_size = best_block(tried, levers)
    return Plan(
        setting, levers, block_size, no_cache=tried(frozenset(), BLOCK_SIZES[0]),
        outcome=tried(levers, block_size), steps=tuple(_steps(tried, known, levers, block_size)),
    )


def _steps(tried: Tried, known: list[Lever], levers: frozenset[str], block_size: int) -> Iterator[Step]:
    smallest = BLOCK_SIZES[0]
    on, time_s = frozenset(), tried(frozenset(), smallest).ttft_s
    for lever in known:
        if lever.key in levers:
            on |= {lever.key}
            before_s, time_s = time_s, tried(on, smallest).ttft_s
            yield Step(lever, before_s, time_s, used=True)
    if block_size != smallest:
        before_s, time_s = time_s, tried(on, block_size).ttft_s
        yield Step(BLOCKS, before_s, time_s, used=True)
    for lever in known:
        if lever.key not in levers:
            yield Step(lever, time_s, tried(with_lever(levers, lever.key), block_size).ttft_s, used=False)
