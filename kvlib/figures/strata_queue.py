"""Chapter 9: runs of the whole prefill queue, for delay hits and for the ablation."""

from __future__ import annotations

from functools import lru_cache

from kvlib.explore import SIMULATED, Choice, Range, Toggle, View, explorer
from kvlib.explore.palette import PREFILL, TRANSFER
from kvlib.explore.words import counted
from kvlib.figures.charts import axis, stacked_bars
from kvlib.figures.strata_drawings import MS, arrives, computes, gantt
from kvlib.tiers import (
    Ask,
    Machine,
    QueueRun,
    chat_turns,
    document_questions,
    known_documents,
    serve_prefills,
)
from kvlib.tiers.documents import WORKLOADS

DOCUMENT_TOKENS = 30_000


@explorer(
    title="Three questions about one new document",
    controls=[
        Toggle("defer", "Put delay hits off"),
        Choice("askers", "Requests", [1, 2, 3, 4, 6, 8], default=3),
        Choice("gap_ms", "Time between them", [0, 5, 100, 500, 1_000, 3_000], default=5, unit="ms"),
        Choice("batch_size", "Requests per batch", [1, 2, 4], default=2),
    ],
    expects={
        "defer": "falls:computations",
        "askers": "rises:computations",
        "gap_ms": "changes:computations",
        "batch_size": "changes:computations",
    },
)
def delay_hits(defer, askers, gap_ms, batch_size) -> View:
    """How often one document is computed when its readers arrive before its KV does."""
    run = document_run(askers, gap_ms * MS, defer, batch_size)
    computations = round(run.computed_tokens / DOCUMENT_TOKENS)
    busy_s = run.busy_ns / 1e9
    bars = [computes(b.start_ns, b.end_ns, "+".join(str(m + 1) for m in b.members)) for b in run.batches]
    end = run.batches[-1].end_ns
    arrivals = [
        arrives(ask * gap_ms * MS, ask * gap_ms * MS + end / 200, f"request {ask + 1}")
        for ask in range(askers)
    ]
    times = "once" if computations == 1 else f"{computations} times"
    return View(
        title=f"{counted(askers, 'request')}, document computed {times}: {busy_s:.1f} s of GPU time",
        picture=gantt(
            [("Numbers are requests", [("arrive", arrivals), ("prefill", bars)])],
            end,
            f"{end / 1e9:.1f} s",
            f"{counted(len(run.batches), 'batch', 'batches')}; the document is computed {times}.",
        ),
        table=[
            ["quantity", "value"],
            ["computations of the document", computations],
            ["GPU time (s)", busy_s],
            ["mean TTFT (s)", run.mean_ttft_s],
            ["last request's TTFT (s)", run.ttft_ns[-1] / 1e9],
            ["put off", sum(run.deferrals)],
        ],
        source=SIMULATED,
        note=(
            f"A document of {DOCUMENT_TOKENS:,} tokens, 64 more per question; Qwen2.5-14B on an H200. Batches"
            " are planned while the one before runs, so its KV is not in the cache yet."
        ),
        numbers={"computations": computations, "busy_s": busy_s},
    )


def document_run(
    askers: int, gap_ns: int, defer: bool, batch_size: int, document_tokens: int = DOCUMENT_TOKENS
) -> QueueRun:
    """Questions about one new document, `gap_ns` apart, through the prefill queue."""
    asks = [Ask(i * gap_ns, 1, document_tokens, 64) for i in range(askers)]
    return serve_prefills(asks, defer=defer, batch_size=batch_size)


PLAIN = {"policy": "fcfs", "defer": False, "bundle": False, "fill": False}
VARIANTS = (
    ("no overlap", "cpu", {**PLAIN, "overlap": False}),
    ("layer overlap", "cpu", PLAIN),
    ("+ scheduling", "cpu", {}),
    ("+ GPU-assisted I/O", "gpu", PLAIN),
    ("both (Strata)", "gpu", {}),
)
ABLATION_ASKS = 40


@lru_cache(maxsize=64)
def ablation_runs(workload_name: str, rate: float, fresh_percent: int, page_tokens: int) -> dict:
    """Every variant on the same requests."""
    known = ()
    if workload_name == "short chat":
        asks = chat_turns(ABLATION_ASKS, rate, seed=1)
    else:
        asks = document_questions(ABLATION_ASKS, rate, seed=1, fresh_share=fresh_percent / 100)
        known = known_documents(asks)
    return {
        name: serve_prefills(asks, known=known, machine=Machine(io=io, page_tokens=page_tokens), **switches)
        for name, io, switches in VARIANTS
    }


@explorer(
    title="Which half of Strata helps?",
    controls=[
        Choice("workload_name", "Workload", WORKLOADS, default="long documents"),
        Range("rate", "Load", 0.5, 8.0, 6, default=4.0, unit="requests/s", log=True),
        Choice("fresh_percent", "Requests with a new document", [0, 5, 10, 20, 40], default=10, unit="%"),
        Choice("page_tokens", "Page size", [16, 32, 64, 256, 1024], default=32, unit="tokens"),
    ],
    expects={
        "workload_name": "changes:gain",
        "rate": "changes:gain",
        "fresh_percent": "changes:gain",
        "page_tokens": "changes:gain",
    },
)
def ablation(workload_name, rate, fresh_percent, page_tokens) -> View:
    """Computing and waiting, with each half of Strata alone and with both."""
    runs = ablation_runs(workload_name, rate, fresh_percent, page_tokens)
    names = list(runs)
    computing = [(run.busy_ns - run.stall_ns) / 1e9 for run in runs.values()]
    waiting = [run.stall_ns / 1e9 for run in runs.values()]
    gain = runs["layer overlap"].mean_ttft_s / runs["both (Strata)"].mean_ttft_s
    said = (
        f"Strata's TTFT is {gain:.1f} times shorter than layer overlap's"
        if gain >= 1.05
        else "nothing changes"
    )
    return View(
        title=f"{workload_name.capitalize()} at {rate:g} requests/s: {said}",
        picture=stacked_bars(
            names,
            [("computing", computing, PREFILL), ("waiting for the link", waiting, TRANSFER)],
            axis("seconds of GPU time"),
        ),
        table=[
            ["variant", "mean TTFT (s)", "waiting (%)", "hits (%)", "decode steps in gaps"],
            *(
                [name, run.mean_ttft_s, 100 * run.stall_share, 100 * run.hit_ratio, run.decode_steps]
                for name, run in runs.items()
            ),
        ],
        source=SIMULATED,
        note=(
            f"{ABLATION_ASKS} requests, seed 1; Qwen2.5-14B on an H200 with a host that holds 4 million"
            " tokens. Scheduling means deferral, balanced batches, bundles and decode steps in the gaps."
        ),
        numbers={"gain": gain, "waiting_percent": 100 * runs["both (Strata)"].stall_share},
    )
