"""Chapter 6: what more memory, and a prefix that is shared, do to the highest rate."""

from __future__ import annotations

from kvlib.explore import Choice, Option, Prediction, View, explorer
from kvlib.explore.palette import LIMIT, POLICY, SERIES
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.serving_data import NAMES, PRECOMPUTED, rate_behind_prefix, rate_with_memory

DRAWN = ("paged", "oracle", "max")
TIMES = (0.5, 1, 2, 4, 8, 16)
# In words: prompt and answer.
AMPLE_WORKLOADS = {
    "ShareGPT": "161 tokens in, 338 out",
    "classification": "1,000 in, 2 out",
}
ALIKE = 1.02


def _predict_ample() -> Prediction:
    paged, reserved = (rate_with_memory("classification", 1, p) for p in ("paged", "max"))
    ratio = paged / reserved
    sizes = (3.4, 1.5, 1.0)
    reply = f"Here it is {ratio:.2f} times the rate."
    return Prediction(
        "A service classifies documents: 1,000 tokens in, 2 tokens out. It reserves 2,048 slots for every request. You switch it to "
        "paging. The highest rate it sustains becomes …",
        (
            Option(
                "over three times as high, as for chat",
                f"A request leaves after two steps. Six at a time are enough to keep the GPU computing prompts. {reply}",
            ),
            Option("about one and a half times as high", f"The slots are freed, but nobody could use them. {reply}"),
            Option("hardly higher", f"{reply} The prompts limit this service, not the memory."),
        ),
        answer=min(range(3), key=lambda i: abs(sizes[i] - ratio)),
    )


@explorer(
    title="When paging buys nothing",
    controls=[
        Choice("workload", "Workload", [(w, f"{w} ({words})") for w, words in AMPLE_WORKLOADS.items()], default="ShareGPT"),
        Choice("times", "KV memory", [(t, f"{t:g} × A100-40GB") for t in TIMES], default=1),
    ],
    predict=_predict_ample,
    expects={"workload": "changes:gain", "times": "rises:paged_rate"},
)
def ample(workload, times) -> View:
    """The highest rate of three policies over the memory for KV."""
    rates = {p: [rate_with_memory(workload, t, p) for t in TIMES] for p in DRAWN}
    paged, reserved = (rate_with_memory(workload, times, p) for p in ("paged", "max"))
    gain = paged / reserved
    title = f"{workload} on {times:g} × the memory: paging sustains {gain:.2f} times the rate of Max"
    if gain <= ALIKE:
        title = f"{workload} on {times:g} × the memory: paging buys nothing ({gain:.2f} times the rate)"
    limit = "200" if workload == "classification" else "50"
    return View(
        title=title,
        picture=line_chart(
            [Line(NAMES[p], TIMES, rates[p], POLICY[p], dash=i, markers=True) for i, p in enumerate(DRAWN)],
            axis("memory for KV (times an A100-40GB's 12,596 slots)"),
            axis("highest rate (requests/s)", low=0, high=1.1 * max(rates["paged"])),
            marks=[Mark("your setting", times, paged, LIMIT)],
        ),
        table=[
            ["memory", *(NAMES[p] for p in DRAWN), "paged over Max"],
            *(
                [f"{t:g} times", *(rates[p][i] for p in DRAWN), f"{rates['paged'][i] / rates['max'][i]:.2f}"]
                for i, t in enumerate(TIMES)
            ),
        ],
        source=PRECOMPUTED,
        note=(
            f"Mean latency within {limit} ms per token; OPT-13B at the speed of one A100, 600 requests a run; only the memory "
            "changes. Where the lines lie on one another, something other than memory is the limit. Real paged kernels also pay for "
            "the block table, which this model leaves out."
        ),
        numbers={"gain": gain, "paged_rate": paged},
    )


PREFIXES = (0, 64, 128, 256, 512, 1024)
PREFIX_WORKLOADS = {"translation": "a sentence, about 30 tokens in and out", "chat": "ShareGPT-like, 161 in, 338 out"}


@explorer(
    title="A prefix that everybody shares",
    controls=[
        Choice("prefix", "Shared prefix", list(PREFIXES), default=256, unit="tokens"),
        Choice("workload", "Behind it", [(w, f"{w} ({words})") for w, words in PREFIX_WORKLOADS.items()], default="translation"),
    ],
    expects={"prefix": "falls:off", "workload": "changes:gain"},
)
def shared_prefix(prefix, workload) -> View:
    """The highest rate with the prefix computed once, and with everybody computing it."""
    rates = {on: [rate_behind_prefix(workload, p, on) for p in PREFIXES] for on in (True, False)}
    at = PREFIXES.index(prefix)
    on, off = rates[True][at], rates[False][at]
    return View(
        title=(
            f"{prefix} common tokens before {'a sentence' if workload == 'translation' else 'a chat'}: "
            f"sharing sustains {on / off:.2f} times the rate"
        ),
        picture=line_chart(
            [
                Line("prefix computed once, shared", PREFIXES, rates[True], POLICY["paged"], markers=True),
                Line("prefix computed by everybody", PREFIXES, rates[False], SERIES[1], dash=1, markers=True),
            ],
            axis("tokens that every prompt begins with"),
            axis("highest rate (requests/s)", low=0, high=1.1 * max(rates[True])),
            marks=[Mark("your setting", prefix, on, LIMIT)],
        ),
        table=[
            ["prefix (tokens)", "shared (requests/s)", "not shared (requests/s)", "gain"],
            *([p, a, b, f"{a / b:.2f}"] for p, a, b in zip(PREFIXES, rates[True], rates[False])),
        ],
        source=PRECOMPUTED,
        note=(
            "Mean latency within 50 ms per token; OPT-13B on an A100, paged, 300 chats or 1,000 translations a run. The prefix is "
            "known beforehand, computed once and pinned; every request still pays for reading its KV. Long prefixes go beyond "
            "OPT's 2,048 tokens, as if the model allowed it."
        ),
        numbers={"on": on, "off": off, "gain": on / off},
    )
