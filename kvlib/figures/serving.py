"""Chapter 6: latency over the rate, and why its end depends on how long you watch."""

from __future__ import annotations

from kvlib.explore import Choice, Option, Prediction, View, explorer
from kvlib.explore.palette import LIMIT, POLICY, SERIES
from kvlib.figures.charts import Line, Mark, axis, level, line_chart, up_to
from kvlib.figures.serving_data import (
    NAMES, PAPER, PAPER_GAINS, POLICIES, PRECOMPUTED, SYSTEMS, WORKLOADS, best_rate, curve, gain, mean_latency_ms,
    precomputed,
)

LIMIT_MS = 50
HIGHEST_DRAWN_MS = 200
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9, 1.0, 1.15)


# ---------------------------------------------------------------- latency-rate curves


def _predict_curves() -> Prediction:
    against_oracle = gain("OPT-13B", "ShareGPT", "oracle")
    reply = f"Here paging sustains {against_oracle:.1f} times the rate of the Oracle."
    return Prediction(
        "The server Oracle knows beforehand how long every answer becomes, and reserves exactly that. Paging knows nothing. "
        "Chat traffic on OPT-13B: who keeps the latency under 50 ms a token up to the higher arrival rate?",
        (
            Option(
                "Oracle: it never guesses wrong and never has to throw anybody out",
                f"It guesses right, but holds the slots of a whole answer while most of it is not written. {reply}",
            ),
            Option("Both alike: neither wastes a slot", f"Oracle's slots are all used in the end, but not all the time. {reply}"),
            Option("Paging", f"A slot that is reserved for later serves nobody now. {reply}"),
        ),
        answer=2 if against_oracle > 1.05 else 1 if against_oracle > 0.95 else 0,
    )


@explorer(
    title="Latency over the arrival rate",
    controls=[
        Choice("share", "Arrival rate", [(s, f"{100 * s:.0f} % of the best") for s in SHARES], default=0.5),
        Choice("workload", "Workload", list(WORKLOADS), default="ShareGPT"),
        Choice("system", "Model", list(SYSTEMS), default="OPT-13B"),
    ],
    predict=_predict_curves,
    expects={"share": "rises:paged_ms", "workload": "changes:best_rate", "system": "changes:best_rate"},
)
def curves(share, workload, system) -> View:
    """Five lines, and where each of them leaves."""
    rows = {policy: curve(system, workload, policy) for policy in POLICIES}
    at = SHARES.index(share)
    rate = rows["paged"][at][0]
    latencies = {policy: rows[policy][at][1] for policy in POLICIES}
    ceiling = HIGHEST_DRAWN_MS
    figure = line_chart(
        [
            Line(NAMES[p], *up_to(*list(zip(*rows[p]))[:2], ceiling), POLICY[p], dash=i, markers=True)
            for i, p in enumerate(reversed(POLICIES))
        ],
        axis("arrival rate (requests/s)", low=0, high=1.02 * rows["paged"][-1][0]),
        axis("mean latency (ms per output token)", low=0, high=ceiling),
        walls=[(rate, "your rate", LIMIT)],
    )
    figure["layout"]["shapes"].append(level(LIMIT_MS))
    held = [NAMES[p] for p in POLICIES if latencies[p] <= LIMIT_MS]
    return View(
        title=f"{rate:.3g} requests/s on {system}: within {LIMIT_MS} ms a token {_list(held)}",
        picture=figure,
        table=[
            ["policy", "here (ms/token)", "running", "highest rate in 50 ms", "paged gains", "paper"],
            *(
                [
                    NAMES[p], latencies[p], rows[p][at][2], best_rate(system, workload, p),
                    f"{gain(system, workload, p):.2f} times", PAPER_GAINS.get((workload, p), "–"),
                ]
                for p in POLICIES
            ),
        ],
        source=f"{PRECOMPUTED}; the column paper is reported by {PAPER}",
        note=(
            f"Dotted: the limit of {LIMIT_MS} ms. Lines are cut at {ceiling} ms. Every point is a run of "
            f"{_num_requests(workload)} requests, "
            "much less than the paper's hour. "
            + ("Paging computes the shared examples once. The paper ran translation on LLaMA-13B." if "shot" in workload else "")
        ).strip(),
        numbers={
            "paged_ms": latencies["paged"], "best_rate": best_rate(system, workload, "paged"), "within": len(held),
            **{f"gain_{p}": gain(system, workload, p) for p in POLICIES},
        },
    )


def _num_requests(workload: str) -> str:
    return f"{precomputed()['num_requests'][workload]:,}"


def _list(names: list[str]) -> str:
    if not names:
        return "there is nobody"
    if len(names) == 1:
        return f"there is only {names[0]}"
    return f"there are {', '.join(names[:-1])} and {names[-1]}"


# ---------------------------------------------------------------- how long you watch

LOADS = (0.7, 0.9, 1.0, 1.1, 1.25)
RUN_LENGTHS = (100, 200, 400, 800, 1600, 3200)


def _predict_run_length() -> Prediction:
    calm = mean_latency_ms(0.9, RUN_LENGTHS[-1])
    short, long = (mean_latency_ms(1.1, n) for n in (RUN_LENGTHS[0], RUN_LENGTHS[-1]))
    reply = (
        f"With {RUN_LENGTHS[0]} requests the mean is {short:.0f} ms a token, with {RUN_LENGTHS[-1]:,} it is {long:.0f} ms, and it does "
        "not stop there."
    )
    if long > 2 * short:
        answer = 2
    else:
        answer = 0 if long < 1.5 * calm else 1
    return Prediction(
        "A server gets 10 % more requests than it can serve. Its mean latency …",
        (
            Option("rises by about 10 %", f"Those 10 % are not served a little later; they pile up. {reply}"),
            Option("doubles", f"For some run it does, as for another it trebles. {reply}"),
            Option("depends on how long you watch", reply),
        ),
        answer=answer,
    )


@explorer(
    title="The mean beyond capacity",
    controls=[
        Choice("num_requests", "Length of the run", list(RUN_LENGTHS), default=400, unit="requests"),
        Choice("load", "Load", [(x, f"{100 * x:.0f} % of capacity") for x in LOADS], default=1.1),
    ],
    predict=_predict_run_length,
    expects={"num_requests": "rises:mean_ms", "load": "rises:mean_ms"},
)
def run_length(num_requests, load) -> View:
    """Mean latency per token against the number of requests in the run."""
    here, longest = mean_latency_ms(load, num_requests), mean_latency_ms(load, RUN_LENGTHS[-1])
    settles = longest < 1.5 * mean_latency_ms(load, RUN_LENGTHS[-3])
    after = "and longer runs say much the same" if settles else f"but {RUN_LENGTHS[-1]:,} requests give {longest:.0f} ms"
    return View(
        title=f"{100 * load:.0f} % of capacity: {num_requests:,} requests give {here:.0f} ms a token, {after}",
        picture=line_chart(
            [
                Line(f"{100 * x:.0f} %", RUN_LENGTHS, [mean_latency_ms(x, n) for n in RUN_LENGTHS], SERIES[i], dash=i, markers=True)
                for i, x in enumerate(LOADS)
            ],
            axis("requests in the run", log=True, low=80, high=4000),
            axis("mean latency (ms per output token)", log=True, low=10, high=10_000),
            marks=[Mark("your run", num_requests, here, LIMIT)],
        ),
        table=[
            ["requests", *(f"{100 * x:.0f} %" for x in LOADS)],
            *([n, *(mean_latency_ms(x, n) for x in LOADS)] for n in RUN_LENGTHS),
        ],
        source=PRECOMPUTED,
        note=(
            f"ShareGPT-like requests, OPT-13B, paged. Capacity is what the server completes when {RUN_LENGTHS[-1]:,} requests arrive at "
            f"nearly the same time: {precomputed()['capacity']:.2f} requests/s. Both axes are logarithmic."
        ),
        numbers={"mean_ms": here, "longest_ms": longest},
    )
