"""A plan as sentences: what to do, why, and the chapter that explains it."""

import math
from dataclasses import dataclass

from kvlib.cost import break_even_bytes_per_s, prefill_s
from kvlib.planner.choose import Plan, with_lever
from kvlib.planner.formats import FULL_BITS, kept_formats, sent_formats, smallest
from kvlib.planner.outcome import Tier, outcome
from kvlib.planner.rates import host_rate, wire_share
from kvlib.planner.setting import STORE_NAMES
from kvlib.planner.sizes import enough_bytes
from kvlib.specs.checks import one_of

GB = 1e9
# Mooncake's objective for the time between tokens (section 8.1 of its paper); a longer stop is felt.
TBT_SLO_S = 0.1
# Below this share of tokens that ever return, nobody would call a prompt repeated.
HARDLY = 0.02


@dataclass(frozen=True)
class Line:
    """One decision.

    Attributes
    ----------
    topic : str
        What it is about: ``"memory"``, ``"block"``, ``"gpu"``, a kind of store, ``"copies"``, ``"overlap"``,
        ``"kept"``, ``"sent"``, ``"queue"`` or ``"decode"``.
    choice, because : str
    chapter : int
    """

    topic: str
    choice: str
    because: str
    chapter: int


def lines(made: Plan) -> list[Line]:
    """The decisions of a plan, from the block to the queue.

    Examples
    --------
    >>> from kvlib.planner import Setting, plan, returning
    >>> from kvlib.specs import get_gpu, get_model
    >>> asks = returning(prompt_tokens=8000, new_tokens=100, output_tokens=100, contexts=4)
    >>> made = plan(Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), asks, load_per_s=1.0))
    >>> [(line.topic, line.choice) for line in lines(made)][:3]
    [('memory', '52 requests fit'), ('block', 'blocks of 16 tokens'), ('gpu', 'reuse prefixes in GPU memory')]
    """
    found = [_memory(made), _block(made), _gpu(made)]
    found += [_store(made, kind) for kind in STORE_NAMES if made.setting.store(kind)]
    if made.setting.stores:
        found += [_copies(made), _overlap(made)]
    found.append(_kept(made))
    if any(store.kind != "host" for store in made.setting.stores):
        found.append(_sent(made))
    return [*found, _queue(made), _decode(made)]


def typical_context(made: Plan) -> int:
    """Cached tokens of a mean request that finds something, the length that break-even is asked at."""
    cells = made.setting.demand.cells
    reach = made.setting.demand.found(math.inf, made.block_size)
    hit = [(cell.share, tokens) for cell, tokens in zip(cells, reach) if tokens]
    if not hit:
        return round(made.setting.demand.input_tokens)
    return max(1, round(math.fsum(s * n for s, n in hit) / math.fsum(s for s, _ in hit)))


def tier_of(made: Plan, kind: str) -> Tier:
    """A store as the plan uses it, or as it would be if it were added."""
    one_of("kind", kind, [store.kind for store in made.setting.stores])
    tiers = outcome(made.setting, with_lever(made.levers, kind), made.block_size).tiers
    return next(tier for tier in tiers if tier.name == STORE_NAMES[kind])


def _memory(made: Plan) -> Line:
    got = made.outcome
    if got.busy >= 1:
        return Line("memory", f"{got.held} requests fit", "prefill leaves no time to decode", 1)
    running = f"more than {2 * got.held}" if got.running is None else f"{got.running}"
    because = f"your load keeps {running} running at once: {'enough' if got.fits else 'too few'}"
    return Line("memory", f"{got.held} requests fit", because, 1)


def _block(made: Plan) -> Line:
    because = "small blocks find more, large ones move faster"
    return Line("block", f"blocks of {made.block_size} tokens", because, 9)


def _gpu(made: Plan) -> Line:
    if "prefix" not in made.levers:
        reach = made.setting.demand.hit_ratio(math.inf)
        if reach < HARDLY:
            return Line("gpu", "no prefix cache needed", "hardly a prompt begins like an earlier one", 7)
        because = f"{percent(reach)} of all tokens return, but too late for the room there is"
        return Line("gpu", "no prefix cache here", because, 7)
    tier = made.outcome.tiers[0]
    because = f"room for {tier.tokens:,} tokens; {percent(tier.hit_share)} of all tokens hit"
    return Line("gpu", "reuse prefixes in GPU memory", because, 7)


def _store(made: Plan, kind: str) -> Line:
    setting, used, tier = made.setting, kind in made.levers, tier_of(made, kind)
    context, num_gpus = typical_context(made), setting.num_gpus
    tie = break_even_bytes_per_s(setting.model, setting.gpu, context, num_gpus=num_gpus)
    # Fewer bytes on the wire bring the tie down with them.
    tie *= wire_share(setting, made.levers, setting.store(kind))
    because = f"{tier.bytes_per_s / GB:.3g} GB/s, break-even {tie / GB:.3g}"
    because += f"; {percent(tier.hit_share)} of all tokens {'hit' if used else 'would hit'}"
    if used and tier.bytes_per_s < tie:
        because += "; computing hides the load"
    if not used and tier.bytes_per_s > tie and tier.hit_share:
        because += "; the others do without it"
    choice = f"{tier.name}: {f'load, {_bytes(enough_bytes(made, kind))} will do' if used else 'leave it out'}"
    return Line(kind, choice, because, 8 if kind == "host" else 11)


def _copies(made: Plan) -> Line:
    cpu, gpu = (
        host_rate(made.setting, levers, made.block_size) / GB
        for levers in (made.levers - {"copies"}, made.levers | {"copies"})
    )
    because = f"the CPU's copies reach {cpu:.3g} GB/s, a GPU kernel's {gpu:.3g}"
    if "copies" in made.levers:
        return Line("copies", "let a GPU kernel copy the blocks", because, 9)
    return Line("copies", "leave the copies to the CPU", because, 9)


def _overlap(made: Plan) -> Line:
    got, used = made.outcome, "overlap" in made.levers
    because = f"on average {_ms(got.load_s)} to load, {_ms(got.compute_s)} to compute"
    return Line("overlap", "load layer by layer" if used else "no need to overlap loading", because, 8)


def _kept(made: Plan) -> Line:
    small, used = smallest(kept_formats(), made.setting.max_kl), "quantized" in made.levers
    because = f"{small.name}: {small.bits:g} bits, KL {small.kl:.2g} nats"
    if not used:
        because = f"{small.name} (KL {small.kl:.2g} nats) was on offer and would not help"
    return Line("kept", f"keep it in {small.bits if used else FULL_BITS:g} bits", because, 13)


def _sent(made: Plan) -> Line:
    small, used = smallest(sent_formats(), made.setting.max_kl), "coded" in made.levers
    because = f"{small.name}: {small.bits:.3g} bits, KL {small.kl:.2g} nats"
    if not used:
        because = f"{small.name} ({small.bits:.3g} bits, KL {small.kl:.2g} nats) was on offer and would not help"
    return Line("sent", "send and store it as a bitstream" if used else "no bitstream", because, 14)


def _queue(made: Plan) -> Line:
    got = made.outcome
    if got.wait_s is None:
        because = f"prefill needs {got.busy:.2g} times the time there is"
        return Line("queue", "turn requests away, or add a machine", because, 12)
    if not got.fits:
        return Line("queue", "turn requests away, or add memory", f"only {got.held} requests fit at once", 12)
    because = f"prefill is busy {percent(got.busy)}; a request waits {_ms(got.wait_s)}"
    return Line("queue", "admit everything", because, 12)


def _decode(made: Plan) -> Line:
    setting, uncached = made.setting, longest_prefill(made)
    stop_s = prefill_s(setting.model, setting.gpu, uncached, 0, setting.num_gpus)
    because = f"{uncached:,} uncached tokens stop decoding for {_ms(stop_s)}"
    choice = "chunk long prefills" if stop_s > TBT_SLO_S else "leave prefills whole"
    return Line("decode", choice, because, 10)


def longest_prefill(made: Plan) -> int:
    """The most tokens that requests of one kind have to compute, whatever the plan's tiers hold of them."""
    found = made.setting.demand.found(sum(tier.tokens for tier in made.outcome.tiers), made.block_size)
    return max(cell.input_tokens - n for cell, n in zip(made.setting.demand.cells, found))


def _ms(seconds: float) -> str:
    """A time to three digits.

    >>> _ms(0.00624), _ms(16.53)
    ('6.24 ms', '16,500 ms')
    """
    return f"{float(f'{1e3 * seconds:.3g}'):,.10g} ms"


def _bytes(num_bytes: float) -> str:
    """A size to two digits, as it is bought.

    >>> _bytes(14.3e9), _bytes(1.26e12)
    ('14 GB', '1.3 TB')
    """
    number, unit = (num_bytes / 1e12, "TB") if num_bytes >= 1e12 else (num_bytes / GB, "GB")
    return f"{float(f'{number:.2g}'):g} {unit}"


def percent(share: float) -> str:
    """A share to two digits: small ones matter where what is left is small.

    >>> percent(0.7234), percent(0.00371), percent(0.0)
    ('72 %', '0.37 %', '0 %')
    """
    return f"{float(f'{100 * share:.2g}'):g} %"
