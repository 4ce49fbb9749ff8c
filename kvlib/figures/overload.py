"""Chapter 12: whom do you turn away, and when?"""

from __future__ import annotations

import math
from functools import lru_cache

from kvlib.cluster import POLICIES_OF_ADMISSION, OverloadRun, Pools, draw_demands, run_overload
from kvlib.explore import SIMULATED, Choice, Option, Prediction, View, explorer
from kvlib.explore.palette import DECODE, FREE, LIMIT, PREFILL, SERIES
from kvlib.figures.charts import Line, axis, line_chart, stacked_bars

NAMES = {
    "baseline": "baseline", "early": "early rejection", "predicted": "system prediction",
    "per_request": "request prediction", "oracle": "oracle",
}
# Rules to tune: a name, what the reader sees, and the settings behind it.
TUNABLE = {
    "predicted": ("system prediction", {"policy": "predicted"}),
    "early": ("early rejection", {"policy": "early"}),
    "per_request_100": ("request prediction ±100 %", {"policy": "per_request", "prediction_error": 1.0}),
    "per_request_30": ("request prediction ±30 %", {"policy": "per_request", "prediction_error": 0.3}),
    "oracle": ("oracle", {"policy": "oracle"}),
}
SPREADS = [("equal", "all equal"), ("narrow", "a little"), ("long_tail", "long tail")]
DECODE_S, PREFILL_S = 20.0, 4.0
REQUESTS, LOAD = 400, 2.0
# Many slots show the swing best; few make late refusals common.
SWING_SLOTS, SLOTS = 32, 12
BOTTLENECK_PER_S = 2.4
SEEDS = range(5)
# What could damp the swing of early rejection (lecture 9, exercise 7): seconds of a prefill, and the controller.
CURES = {
    "early rejection, 4 s of prefill": (4.0, {"policy": "early"}),
    "a shorter delay: 1 s of prefill": (1.0, {"policy": "early"}),
    "a lower gain: admit by chance": (4.0, {"policy": "early", "gain": 1.0}),
    "no delay: predict the load then": (4.0, {"policy": "predicted"}),
    "a limit 20 % lower": (4.0, {"policy": "early", "headroom": -0.2}),
}


def rate_per_s(load: float, slots: int) -> float:
    """Arrivals per second that offer ``load`` times what the decode pool can serve.

    >>> rate_per_s(2.0, 12)
    1.2
    """
    return load * slots / DECODE_S


def pools_for(prefill_s: float, load: float, slots: int) -> Pools:
    """A prefill pool just large enough for all arrivals, so that the decode pool is the bottleneck."""
    instances = math.ceil(rate_per_s(load, slots) * prefill_s)
    return Pools(instances, slots, ttft_slo_s=5 * prefill_s + 5)


@lru_cache(maxsize=512)
def run(
    seed: int, pools: Pools, requests_per_s: float, spread: str = "long_tail", prefill_s: float = PREFILL_S,
    first_token_share: float = 0.0, **controller,
) -> OverloadRun:
    """One run of this chapter; remembered, since its explorers share most of them."""
    demands = draw_demands(
        REQUESTS, rate_per_s=requests_per_s, prefill_s=prefill_s, decode_s=DECODE_S, decode_spread=spread,
        first_token_share=first_token_share, seed=seed,
    )
    return run_overload(demands, pools, seed=seed, **controller)


def mean(values) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def interval(differences) -> tuple[float, float]:
    """Mean and half width of the 95 % interval of five paired differences (Student's t).

    >>> interval([2, 4, 3, 3, 3])[0]
    3.0
    """
    middle = mean(differences)
    variance = math.fsum((d - middle) ** 2 for d in differences) / (len(differences) - 1)
    return middle, 2.776 * math.sqrt(variance / len(differences))


def _predict_early() -> Prediction:
    pools = pools_for(PREFILL_S, LOAD, SLOTS)
    rate = rate_per_s(LOAD, SLOTS)
    base, early = (
        [run(seed, pools, rate, policy=policy) for seed in SEEDS] for policy in ("baseline", "early")
    )
    done, half = interval([e.completed - b.completed for e, b in zip(early, base)])
    more = done > half
    waste = mean(e.wasted_prefill_s for e in early) / mean(b.wasted_prefill_s for b in base)
    fact = (
        f"Over five seeds with long-tailed decodes, early rejection wastes {1 - waste:.0%} less prefill and "
        f"completes {done:+.0f} ± {half:.0f} requests of {mean(b.completed for b in base):.0f}."
    )
    return Prediction(
        "Twice as many requests arrive as the decode pool can serve. Instead of refusing after the "
        "prefill, you now refuse on arrival whenever the decode pool is full. What improves?",
        (
            Option(
                "wasted prefill and completed requests",
                "The saved prefill helps nobody here: the decode pool decides how many requests complete, "
                f"and it was full before. {fact}",
            ),
            Option(
                "only wasted prefill",
                f"The decode pool is the bottleneck, and it was full before. {fact}",
            ),
            Option(
                "neither",
                f"Much less prefill is wasted: most of the refused were going to be refused anyway. {fact}",
            ),
        ),
        answer=0 if more and waste < 0.9 else 1 if waste < 0.9 else 2,
    )


@explorer(
    title="Two loads that swing against each other",
    controls=[
        Choice("prefill_s", "A prefill takes", [0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0], default=3.0, unit="s"),
        Choice("policy", "Admission rule", list(NAMES.items()), default="early"),
        Choice("spread", "Decode times differ", SPREADS, default="equal"),
        Choice("load", "Load on the decode pool", [1.0, 1.5, 2.0, 3.0], default=LOAD, unit="× capacity"),
    ],
    predict=_predict_early,
    expects={
        "prefill_s": "changes:decode_swing", "policy": "changes:wasted_share",
        "spread": "changes:decode_swing",
        "load": "changes:rejected",
    },
)
def swing(prefill_s, policy, spread, load) -> View:
    """Both loads over time. The prefill pool grows with the prefill time, so only the delay changes."""
    pools = pools_for(prefill_s, load, SWING_SLOTS)
    made = run(1, pools, rate_per_s(load, SWING_SLOTS), spread, prefill_s, policy=policy)
    times = [s.time_s for s in made.samples]
    phase = "undefined" if made.correlation is None else f"{made.correlation:+.2f}"
    wasted = made.wasted_prefill_us / made.prefill_us if made.prefill_us else 0.0
    return View(
        title=(
            f"{NAMES[policy].capitalize()}, prefill {prefill_s:g} s: the decode load swings by "
            f"±{made.decode_swing:.0%}, "
            f"the two loads correlate by {phase}"
        ),
        picture=line_chart(
            [
                Line(
                    "prefill (requests per instance)", times, [s.prefill_load for s in made.samples], PREFILL,
                    dash=1,
                ),
                Line("decode (share of slots)", times, [s.decode_load for s in made.samples], DECODE),
            ],
            axis("time (s)"),
            axis(
                "load (1 = just full)", low=0,
                high=max(1.6, max(s.prefill_load for s in made.samples) * 1.05),
            ),
        ),
        table=[
            ["what became of them", "requests"],
            ["completed", made.completed],
            ["refused on arrival, no decode slot expected", made.rejected_for_decode],
            ["refused on arrival, first token too late", made.rejected_for_ttft],
            ["refused after the prefill", made.rejected_after_prefill],
            ["in flight at the last arrival", made.in_flight],
        ],
        source=SIMULATED,
        note=(
            f"{REQUESTS} Poisson arrivals, {SWING_SLOTS} decode slots, {pools.prefill_instances} prefill "
            "instances, mean decode 20 s; "
            f"one seed. {wasted:.0%} of prefill time was wasted."
        ),
        numbers={
            "decode_swing": made.decode_swing, "correlation": made.correlation or 0.0,
            "rejected": made.rejected,
            "completed": made.completed, "wasted_share": wasted,
        },
    )


def damped(cure: str) -> list[OverloadRun]:
    """Five runs of the setting of `swing` with one of `CURES`."""
    prefill_s, controller = CURES[cure]
    pools, rate = pools_for(prefill_s, LOAD, SWING_SLOTS), rate_per_s(LOAD, SWING_SLOTS)
    return [run(seed, pools, rate, "equal", prefill_s, **controller) for seed in SEEDS]


@explorer(
    title="Earlier is always better?",
    controls=[
        Choice("headroom", "Headroom of the limit", [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8], default=0.0),
        Choice(
            "gain", "Reaction",
            [(0.5, "very gentle"), (1.0, "gentle"), (2.0, "brisk"), (4.0, "sharp"), (0.0, "all or nothing")],
            default=0.0,
        ),
        Choice("rule", "Rule", [(key, words) for key, (words, _) in TUNABLE.items()], default="predicted"),
        Choice("spread", "Decode times differ", SPREADS, default="equal"),
    ],
    expects={
        "headroom": "rises:wasted_percent", "gain": "changes:completed_percent",
        "rule": "changes:wasted_percent",
        "spread": "rises:wasted_percent",
    },
)
def controller(headroom, gain, rule, spread) -> View:
    """Completions and waste of one controller against the baseline, with the phase of the loads."""
    base, tuned = tuned_runs(headroom, gain, rule, spread)
    done = 100 * mean(t.completed for t in tuned) / mean(b.completed for b in base)
    waste = 100 * mean(t.wasted_prefill_s for t in tuned) / mean(b.wasted_prefill_s for b in base)
    phases = [mean(r.correlation or 0.0 for r in runs) for runs in (base, tuned)]
    used, settings = TUNABLE[rule]
    figure = stacked_bars(
        ["completed", "wasted prefill"], [(used, [done, waste], DECODE)],
        axis("percent of the baseline (%)", low=0, high=110),
        walls=[(100, "baseline", LIMIT)],
    )
    return View(
        title=(
            f"{used.capitalize()}: {done:.0f} % of the baseline's completions, {waste:.0f} % of its waste, "
            f"phase {phases[1]:+.2f}"
        ),
        picture=figure,
        table=[
            ["mean of five seeds", "baseline", used],
            ["completed", mean(b.completed for b in base), mean(t.completed for t in tuned)],
            [
                "wasted prefill (s)", mean(b.wasted_prefill_s for b in base),
                mean(t.wasted_prefill_s for t in tuned),
            ],
            ["correlation of the loads", *phases],
            [
                "swing of the decode load", mean(b.decode_swing for b in base),
                mean(t.decode_swing for t in tuned),
            ],
        ],
        source=SIMULATED,
        note=(
            f"The rule: {POLICIES_OF_ADMISSION[settings['policy']]}. {REQUESTS} requests at twice the decode "
            f"capacity, {SLOTS} slots."
        ),
        numbers={"completed_percent": done, "wasted_percent": waste, "correlation": phases[1]},
    )


def tuned_runs(headroom: float, gain: float, rule: str, spread: str) -> tuple[
    list[OverloadRun], list[OverloadRun],
]:
    """The baseline and a tuned rule on the same five draws; a gain of 0 stands for all or nothing."""
    pools = pools_for(PREFILL_S, LOAD, SLOTS)
    settings = {**TUNABLE[rule][1], "headroom": headroom, "gain": gain or None}
    return tuple(
        [run(seed, pools, rate_per_s(LOAD, SLOTS), spread, **knobs) for seed in SEEDS] for knobs in (
            {"policy": "baseline"}, settings,
        )
    )


@explorer(
    title="When more requests complete",
    controls=[
        Choice("prefill_instances", "Prefill instances", [1, 2, 3, 4, 5, 6, 9, 12], default=3),
        Choice(
            "share", "Requests that want one token only",
            [(0.0, "none"), (0.15, "15 %"), (0.3, "30 %"), (0.45, "45 %")], default=0.3,
        ),
        Choice("decode_slots", "Decode slots", [3, 6, 9, 12], default=6),
        Choice("policy", "Rule", [p for p in NAMES.items() if p[0] != "baseline"], default="early"),
    ],
    expects={
        "prefill_instances": "changes:gained", "share": "changes:gained", "decode_slots": "rises:baseline",
        "policy": "changes:gained",
    },
)
def bottleneck(prefill_instances, share, decode_slots, policy) -> View:
    """The gain in completions over the baseline, with its interval over five seeds."""
    pools = Pools(prefill_instances, decode_slots)
    runs = {
        name: [run(seed, pools, BOTTLENECK_PER_S, first_token_share=share, policy=name) for seed in SEEDS]
        for name in ("baseline", policy)
    }
    base, tried = runs.values()
    gained, half = interval([t.completed - b.completed for t, b in zip(tried, base)])
    words = "more" if gained > half else "fewer" if -gained > half else "neither more nor fewer"
    figure = stacked_bars(
        [NAMES[name] for name in runs],
        [
            ("completed", [mean(r.completed for r in group) for group in runs.values()], DECODE),
            (
                "refused on arrival",
                [mean(r.rejected_for_ttft + r.rejected_for_decode for r in group) for group in runs.values()],
                FREE,
            ),
            (
                "refused after prefill",
                [mean(r.rejected_after_prefill for r in group) for group in runs.values()], LIMIT,
            ),
            ("in flight", [mean(r.in_flight for r in group) for group in runs.values()], SERIES[4]),
        ],
        axis("requests"),
    )
    return View(
        title=(
            f"With {prefill_instances} prefill instances, {NAMES[policy]} completes {words} requests than "
            "the baseline: "
            f"{gained:+.1f} ± {half:.1f} of {mean(b.completed for b in base):.0f}"
        ),
        picture=figure,
        table=[
            [
                "mean of five seeds", "completed", "prefill busy (%)", "prefill wasted (%)",
                "decode slots taken (%)",
            ],
            *(
                [
                    NAMES[name], mean(r.completed for r in group),
                    *(100 * mean(use) for use in zip(*map(utilization, group, [pools] * 5))),
                ]
                for name, group in runs.items()
            ),
        ],
        source=SIMULATED,
        note=(
            "The interval is Student's 95 % interval of five paired differences. The requests are the same "
            "under both rules."
        ),
        numbers={"gained": gained, "half_width": half, "baseline": mean(b.completed for b in base)},
    )


def utilization(made: OverloadRun, pools: Pools) -> tuple[float, float, float]:
    """Shares: prefill time in use, of it wasted, decode slots taken."""
    prefill = made.prefill_us / (pools.prefill_instances * made.duration_us)
    decode = made.occupied_us / (pools.decode_slots * made.duration_us)
    return prefill, made.wasted_prefill_us / max(1, made.prefill_us), decode
