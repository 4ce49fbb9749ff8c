"""Chapter 12: the self-checked exercises."""

from __future__ import annotations

from kvlib.cluster import Demand, Expected, Pools, run_overload, slots_taken
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.figures.overload import BOTTLENECK_PER_S, SEEDS, interval, mean, run, tuned_runs
from kvlib.workloads.arrivals import US_PER_S

GPUS_PER_INSTANCE = 8


@exercise(title="System-level prediction by hand")
def system_prediction(rng) -> Problem:
    ours, lasts = 100 + rng.randrange(4, 16), rng.choice((16, 18, 20, 25))
    decodes = sorted(rng.randrange(ours - lasts - 12, 99) for _ in range(4))
    prefills = sorted(100 + rng.randrange(1, ours - 100) for _ in range(2))
    late = ours + rng.choice((2, 3, 5))
    starts = [*decodes, *prefills, late]
    answer = slots_taken(ours, [Expected(start, lasts) for start in starts])
    return Problem(
        f"It is second 100. Decodes began at seconds {_and(decodes)}. Accepted prefills will end at "
        f"{_and([*prefills, late])}, and ours would end at {ours}. Every decode is assumed to last {lasts} "
        "s. How many other requests will be decoding when ours starts to?",
        answer,
        "requests",
        f"A request decodes at {ours} if its decode began after {ours} − {lasts} = {ours - lasts} and no "
        f"later than {ours}. Of {_and(starts)} these are "
        f"{_and([s for s in starts if ours - lasts < s <= ours]) or 'none'}: {answer}.",
        slips=(
            Slip(
                answer + 1,
                "The last prefill ends after ours, so it is not decoding yet. Or you counted ours: count "
                "the others.",
            ),
            Slip(
                sum(ours - lasts < s for s in decodes),
                "You left out the prefills that end before ours. They decode by then.",
            ),
            Slip(len(decodes) + len(prefills), "Some of the early decodes have ended by then."),
            Slip(
                sum(100 - lasts < s for s in decodes),
                "That is the load now. Early rejection looks at it, and that is its mistake.",
            ),
        ),
    )


def _and(numbers) -> str:
    return ", ".join(str(n) for n in numbers)


@exercise(title="GPU-seconds for nothing")
def wasted_gpu_seconds(rng) -> Problem:
    prefills = [rng.randrange(2, 7) for _ in range(5)]
    decodes = [rng.randrange(9, 26) for _ in range(5)]
    demands = [Demand(0, p * US_PER_S, d * US_PER_S) for p, d in zip(prefills, decodes)]
    pools = Pools(1, 1, ttft_slo_s=1000.0)
    # The run ends at the last arrival, so a sixth request comes when all is over.
    made = run_overload([*demands, Demand(1000 * US_PER_S, US_PER_S, US_PER_S)], pools)
    wasted_s = round(made.wasted_prefill_s)
    ends = [sum(prefills[: i + 1]) for i in range(5)]
    return Problem(
        f"One prefill instance of {GPUS_PER_INSTANCE} GPUs serves five requests that all arrive at second "
        f"0, one after the other. Their prefills take {_and(prefills)} s and their decodes would take "
        f"{_and(decodes)} s. The decode pool has one slot. A request whose prefill is done while the slot "
        "is taken is refused. How many GPU-seconds of prefill are wasted?",
        wasted_s * GPUS_PER_INSTANCE,
        "GPU-seconds",
        f"The prefills end at seconds {_and(ends)}. Whoever finds the slot free takes it until its decode "
        f"ends; {made.rejected_after_prefill} of the five find it taken. Their prefills add up to "
        f"{wasted_s} s, times {GPUS_PER_INSTANCE} GPUs.",
        slips=(
            Slip(wasted_s, "Those are seconds of the instance. It has eight GPUs."),
            Slip(sum(prefills) * GPUS_PER_INSTANCE, "That is all prefill. Some of it was used."),
            Slip(
                (sum(prefills) - prefills[0]) * GPUS_PER_INSTANCE,
                "The slot may become free again. Follow the decode ends.",
            ),
            Slip((sum(prefills) - wasted_s) * GPUS_PER_INSTANCE, "Those are the prefills that were used."),
        ),
    )


@exercise(title="Find a setting: damp the swing")
def damp_the_swing(rng) -> Search:
    spared = rng.choice((4, 6, 8))
    controls = (
        Choice("headroom", "Headroom of the limit", [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8], default=0.0),
        Choice(
            "gain", "Reaction",
            [(0.5, "very gentle"), (1.0, "gentle"), (2.0, "brisk"), (4.0, "sharp"), (0.0, "all or nothing")],
            default=0.0,
        ),
        Choice(
            "rule", "Rule", [("early", "early rejection"), ("predicted", "system prediction")],
            default="early",
        ),
    )

    def judge(headroom, gain, rule) -> Verdict:
        base, tuned = tuned_runs(headroom, gain, rule, "equal")
        phase = mean(t.correlation or 0.0 for t in tuned)
        done = mean(t.completed for t in tuned) / mean(b.completed for b in base)
        waste = mean(t.wasted_prefill_s for t in tuned) / mean(b.wasted_prefill_s for b in base)
        said = (
            f"Over five seeds: correlation {phase:+.2f}, completions {done:.1%} and waste {waste:.1%} of the "
            "baseline's."
        )
        wanted = (
            f"Wanted: |correlation| below 0.2, completions at least 99 %, waste at most {100 - spared} %."
        )
        right = abs(phase) < 0.2 and done >= 0.99 and waste <= 1 - spared / 100
        return Verdict(right, said if right else f"{said} {wanted}")

    return Search(
        "Tune the controller until the two loads no longer swing against each other (|correlation| below "
        f"0.2), at least 99 % of the baseline's requests complete, and still at least {spared} % of its "
        "waste is spared. All decodes last 20 s; twice the capacity arrives.",
        controls,
        judge,
        {"headroom": 0.6, "gain": 2.0, "rule": "predicted"},
        "System prediction with a headroom of 0.6 and a brisk reaction will do. It counts the prefills "
        "under way, so the load it expects can exceed the pool: let in more than fits, and somebody always "
        "waits for a free slot. Early rejection sees at most a full pool, so with headroom an "
        "all-or-nothing limit is never reached. Move along the settings that work: waste that is spared is "
        "paid for with completions.",
    )


@exercise(title="Find a setting: more requests complete")
def more_complete(rng) -> Search:
    at_least = rng.choice((4, 5, 6))
    controls = (
        Choice("prefill_instances", "Prefill instances", [1, 2, 3, 4, 6, 9, 12], default=12),
        Choice("decode_slots", "Decode slots", [3, 6, 9, 12], default=6),
    )

    def judge(prefill_instances, decode_slots) -> Verdict:
        pools = Pools(prefill_instances, decode_slots)
        base, early = (
            [run(seed, pools, BOTTLENECK_PER_S, first_token_share=0.3, policy=policy) for seed in SEEDS] for policy in (
                "baseline", "early",
            )
        )
        gained, half = interval([e.completed - b.completed for e, b in zip(early, base)])
        percent = 100 * gained / mean(b.completed for b in base)
        said = f"Over five seeds: {gained:+.1f} ± {half:.1f} completed requests, {percent:+.1f} %."
        right = gained > half and percent >= at_least
        return Verdict(
            right,
            said if right else f"{said} Wanted: at least {at_least} % more, and more than the ± of the interval.",
        )

    return Search(
        "Three requests of ten want one token only and never need a decode slot. With twelve prefill "
        "instances, early rejection does not raise the number of completed requests. Change one resource "
        f"until it does, by at least {at_least} % and by more than the interval over five seeds. Which pool "
        "is then the bottleneck?",
        controls,
        judge,
        {"prefill_instances": 4, "decode_slots": 6},
        "Take away prefill instances. Now prefill is scarce as well, and every prefill wasted on a request "
        "without a decode slot keeps out one that needed no slot. Take away too many and the decode pool "
        "is never full, so there is nothing to refuse early.",
    )
