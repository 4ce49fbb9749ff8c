"""What becomes of the demand when some levers are on: hits, memory, and the time to the first token.

Assumptions, each of which a plan inherits: one LRU list runs through all tiers, fastest first, as in chapter
11's pool. Loads of one request follow one another, and what comes from outside also crosses the host's link.
Prefills wait for each other in one queue, and decode gets the time that they leave. What runs is counted
apart from what is cached. Decoding a bitstream and writing to a tier are free.
"""

import math
from dataclasses import dataclass

from kvlib.cost import decode_tokens_per_s, prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.planner.demand import BLOCK_SIZES
from kvlib.planner.levers import LEVERS
from kvlib.planner.rates import kv_format, store_rate, wire_share
from kvlib.planner.setting import Setting
from kvlib.specs import LinkSpec, kv_slots
from kvlib.specs.checks import one_of
from kvlib.specs.kv_dtypes import KvDtype
from kvlib.tiers import GpuCopies

LEVER_KEYS = [lever.key for lever in LEVERS]


@dataclass(frozen=True)
class Tier:
    """One place of the list, as this state of the levers uses it.

    Attributes
    ----------
    name : str
    tokens : int
        How many it holds.
    hit_share : float
        Share of all prompt tokens that are found here.
    bytes_per_s : float or None
        What its link delivers; None for GPU memory, where a hit moves nothing.
    """

    name: str
    tokens: int
    hit_share: float
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Served:
    """Hits and times of a mean request.

    Attributes
    ----------
    ttft_s : float
        Time to the first token on an idle machine.
    load_s, compute_s : float
        Its parts, before they overlap.
    tiers : tuple of Tier
        Fastest first; GPU memory is the first one.
    busy : float
        Share of the time in which some prefill runs or waits for its KV; 1 and more is overload.
    wait_s : float or None
        Mean time in the queue before that, None in overload.
    """

    ttft_s: float
    load_s: float
    compute_s: float
    tiers: tuple[Tier, ...]
    busy: float
    wait_s: float | None

    @property
    def hit_ratio(self) -> float:
        return math.fsum(tier.hit_share for tier in self.tiers)


@dataclass(frozen=True)
class Outcome(Served):
    """The same, and whether memory holds what the load keeps running.

    Attributes
    ----------
    running : int or None
        Requests that must be in memory at once to keep up; None if twice `held` would not do, or if prefill
        leaves no time to decode.
    held : int
        Requests that fit.
    """

    running: int | None
    held: int

    @property
    def fits(self) -> bool:
        return self.running is not None and self.running <= self.held

    @property
    def serves(self) -> bool:
        """Neither memory nor prefill is overloaded."""
        return self.fits and self.busy < 1


def outcome(setting: Setting, levers: frozenset[str], block_size: int = BLOCK_SIZES[0]) -> Outcome:
    """Hits, memory and mean time to the first token with some levers on.

    Layer-wise overlap is that of Mooncake (Qin et al. 2025), section 5.2; the queue is that of DistServe
    (Zhong et al. 2024), section 3.1, for prompts that are not all alike.

    Parameters
    ----------
    setting : Setting
    levers : frozenset of str
        Keys of the levers that are on.
    block_size : int
        One of `kvlib.planner.demand.BLOCK_SIZES`.

    Raises
    ------
    ConfigError
        If the weights leave no room, the model's work cannot be counted, or a lever or block size is unknown.

    Examples
    --------
    >>> from kvlib.planner.demand import returning
    >>> from kvlib.specs import get_gpu, get_model
    >>> asks = returning(prompt_tokens=8000, new_tokens=100, output_tokens=100, contexts=4)
    >>> bare = Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), asks, load_per_s=1.0)
    >>> [round(1e3 * outcome(bare, levers).ttft_s) for levers in (frozenset(), frozenset({"prefix"}))]
    [191, 3]
    """
    if not isinstance(levers, (set, frozenset)):
        raise ConfigError(f"levers: got {levers!r}, expected a set of keys")
    for lever in levers:
        one_of("levers", lever, LEVER_KEYS)
    if block_size not in BLOCK_SIZES:
        raise ConfigError(f"block_size: got {block_size!r}, expected one of {', '.join(map(str, BLOCK_SIZES))}")
    dtype, demand = kv_format(setting, levers), setting.demand
    setting.model.require("layers", "weight_bytes")
    slots = kv_slots(setting.model, setting.gpu, dtype, setting.num_gpus)
    final = demand.input_tokens + demand.output_tokens
    held = math.floor(slots / final)
    if not slots:
        where = f"{setting.num_gpus} x {setting.gpu.name}"
        raise ConfigError(f"model: got {setting.model.name}, its weights fill {where}, expected room for KV")
    # How many requests run depends on how long prefill takes, and that on the room they leave to the cache:
    # the first round gives them none of it, which is nearly right wherever the load is light.
    stores = _stores_in_use(setting, levers, block_size)
    idle = _served(setting, levers, block_size, slots, stores)
    running = _running(setting, dtype, idle.busy, held)
    room = slots - math.ceil(final * (held if running is None else min(running, held)))
    here = _served(setting, levers, block_size, max(0, room), stores)
    return Outcome(**vars(here), running=running, held=held)


@dataclass(frozen=True)
class _Use:
    """A store that is on: its room, its share of the bf16 bytes, and what its link delivers."""

    name: str
    tokens: int
    share: float
    link: LinkSpec


def _stores_in_use(setting: Setting, levers: frozenset[str], block_size: int) -> list[_Use]:
    """The stores that are on, fastest first, behind the host's memory."""
    used = []
    for store in (store for store in setting.stores if store.kind in levers):
        share = wire_share(setting, levers, store)
        tokens = math.floor(store.num_bytes / (share * setting.model.shape.kv_bytes_per_token()))
        link = LinkSpec(store.name, store_rate(setting, levers, store, block_size))
        used.append((store.kind != "host", -link.bytes_per_s, _Use(store.name, tokens, share, link)))
    return [use for *_, use in sorted(used, key=lambda entry: entry[:2])]


def _served(
    setting: Setting, levers: frozenset[str], block_size: int, gpu_tokens: int, stores: list[_Use]
) -> Served:
    """Hits and times, given how many tokens of GPU memory belong to the cache."""
    demand, model = setting.demand, setting.model
    cells, shares = demand.cells, [cell.share for cell in demand.cells]

    def mean(values) -> float:
        return math.fsum(share * value for share, value in zip(shares, values))

    tiers, upto, found, loads = [], gpu_tokens, [0] * len(cells), [0.0] * len(cells)
    if "prefix" in levers:
        found = demand.found(upto, block_size)
        tiers.append(Tier("GPU memory", gpu_tokens, mean(found) / demand.input_tokens))
        for use in stores:
            upto += use.tokens
            now = demand.found(upto, block_size)
            here = [new - old for new, old in zip(now, found)]
            loads = [
                old + transfer_s(use.share * model.shape.kv_bytes(n), use.link) if n else old
                for old, n in zip(loads, here)
            ]
            tiers.append(Tier(use.name, use.tokens, mean(here) / demand.input_tokens, use.link.bytes_per_s))
            found = now
    reach = upto if "prefix" in levers else 0
    computes = [
        prefill_s(model, setting.gpu, new, cached, setting.num_gpus)
        for new, cached in demand.prefills(found, reach)
    ]
    if "copies" in levers:
        slower = GpuCopies().prefill_factor - 1
        computes = [c + slower * min(load, c) for c, load in zip(computes, loads)]
    times = [
        overlapped_s(load, c, model.layers) if "overlap" in levers else load + c
        for load, c in zip(loads, computes)
    ]
    busy = setting.load_per_s * mean(times)
    wait_s = None
    if busy < 1:                # Pollaczek-Khinchine: load * E[time^2] / (2 * (1 - busy))
        squares = mean(t * t * uneven for t, uneven in zip(times, demand.unevenness(reach)))
        wait_s = setting.load_per_s * squares / (2 * (1 - busy))
    return Served(mean(times), mean(loads), mean(computes), tuple(tiers), busy, wait_s)


def overlapped_s(load_s: float, compute_s: float, layers: int) -> float:
    """`kvlib.tiers.overlap_layers` for equal layers: the first layer's load shows, later ones only if longer.

    Examples
    --------
    >>> from kvlib.tiers import overlap_layers
    >>> run = overlap_layers([0.003] * 80, [0.002] * 80, [0.0] * 80)
    >>> abs(overlapped_s(80 * 0.003, 80 * 0.002, 80) - run.prefill_s) < 1e-12
    True
    """
    load, compute = load_s / layers, compute_s / layers
    return load + compute + (layers - 1) * max(load, compute)


def _running(setting: Setting, dtype: KvDtype, busy: float, held: int) -> int | None:
    """The smallest batch whose decode keeps up in the time prefill leaves; looked for up to twice `held`."""
    demand, left = setting.demand, 1 - busy
    if left <= 0:
        return None
    needed_per_s = setting.load_per_s * demand.output_tokens / left
    context = round(demand.input_tokens + demand.output_tokens / 2)

    def keeps_up(batch: int) -> bool:
        rate = decode_tokens_per_s(setting.model, setting.gpu, batch, context, dtype, setting.num_gpus)
        return rate >= needed_per_s

    low, high, most = 0, 1, max(2, 2 * held)
    while not keeps_up(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps_up(middle) else (middle, high)
    return high
