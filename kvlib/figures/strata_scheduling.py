"""Chapter 9: prefill that waits for the link, and batches that do not."""

from __future__ import annotations

from kvlib.explore import SIMULATED, Choice, Option, Prediction, Toggle, View, explorer
from kvlib.explore.palette import LIMIT, SERIES, TRANSFER
from kvlib.explore.words import counted
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.strata import LINKS, MODELS, page_control
from kvlib.figures.strata_drawings import MS, computes, decodes, gantt, loads, waits
from kvlib.specs import GPUS
from kvlib.tiers import Machine, Work, batches, burst_order, overlap_layers

NEW_TOKENS = [64, 128, 256, 512, 1024]
MOST_CACHED = 2**20
RATIOS = [1, 2, 5, 10, 20, 50, 100, 200, 500]
CONTEXT = Choice(
    "cached",
    "Cached context of a question",
    [2_000, 4_000, 8_000, 16_000, 31_000, 64_000],
    default=31_000,
    unit="tokens",
)


@explorer(
    title="When does prefill wait for the link?",
    controls=[
        Choice("ratio", "Cached tokens per new token", RATIOS, default=100),
        Choice("new_tokens", "New tokens", NEW_TOKENS, default=256, unit="tokens"),
        page_control(),
        Choice("link", "Link", LINKS, default="pcie5-x16"),
        Choice("model", "Model", MODELS, default="qwen2.5-14b"),
        Choice("gpu", "GPU", tuple(GPUS), default="h200"),
    ],
    expects={
        "ratio": "rises:stall_percent",
        "new_tokens": "changes:knee",
        "page_tokens": "falls:stall_percent",
        "link": "changes:knee",
        "model": "changes:knee",
        "gpu": "changes:knee",
    },
)
def stall(ratio, new_tokens, page_tokens, link, model, gpu) -> View:
    """Share of prefill spent waiting, against cached ÷ new tokens, by how the KV is copied."""
    machines = {io: Machine(model, gpu, link, io, page_tokens) for io in ("cpu", "gpu")}

    def percents(io: str, overlap: bool = True) -> list[float]:
        return [100 * machines[io].stall_share(new_tokens, r * new_tokens, overlap) for r in RATIOS]

    here = RATIOS.index(ratio)
    serial, cpu, kernel = percents("cpu", overlap=False), percents("cpu"), percents("gpu")
    hidden = {io: machine.hidden_tokens(new_tokens) for io, machine in machines.items()}
    knee = {
        io: f"never, up to {MOST_CACHED:,} tokens" if n == MOST_CACHED else n / new_tokens
        for io, n in hidden.items()
    }
    return View(
        title=(
            f"At {counted(ratio, 'cached token')} per new one, prefill waits {cpu[here]:.0f} % of its time, "
            f"{kernel[here]:.0f} % with GPU-assisted copies"
        ),
        picture=line_chart(
            [
                Line("no overlap, CPU copies", RATIOS, serial, SERIES[5], dash=2),
                Line("layer overlap, CPU copies", RATIOS, cpu, TRANSFER, dash=1, markers=True),
                Line("layer overlap, GPU-assisted", RATIOS, kernel, SERIES[2], markers=True),
            ],
            axis("cached tokens per new token", log=True, low=0.8, high=600),
            axis("percent of prefill spent waiting", low=0, high=100),
            marks=[Mark("your request", ratio, cpu[here], LIMIT)],
        ),
        table=[
            ["copies", "waiting (%)", "waits from ratio"],
            ["CPU, no overlap", serial[here], 0],
            ["CPU, layer overlap", cpu[here], knee["cpu"]],
            ["GPU-assisted, layer overlap", kernel[here], knee["gpu"]],
        ],
        source=SIMULATED,
        note=(
            "Overlap hides loading only while there is enough to compute. Where that ends depends on machine"
            " and model: Strata sees it from a ratio of about 100 on, with slower computation than our"
            " roofline's."
        ),
        numbers={"stall_percent": cpu[here], "knee": hidden["gpu"] / new_tokens},
    )


FILLINGS = ("nothing", "decode steps", "a new prompt")


@explorer(
    title="Can layer overlap hide the load?",
    controls=[
        Choice("ratio", "Cached tokens per new token", RATIOS, default=50),
        Choice("filling", "Fill the gap with", FILLINGS, default="nothing"),
        Toggle("gpu_assisted", "GPU-assisted copies", default=True),
    ],
    expects={
        "ratio": "rises:waiting_ms",
        "filling": "changes:waiting_ms",
        "gpu_assisted": "falls:waiting_ms",
    },
)
def gap(ratio, filling, gpu_assisted) -> View:
    """One batch as a Gantt chart: the link, the GPU, and what else the GPU could do."""
    machine = Machine(io="gpu" if gpu_assisted else "cpu")
    cached, new = 256 * ratio, 256
    load = machine.load_ns(cached)
    compute = machine.compute_ns(new, cached)
    partner = machine.compute_ns(3_400) if filling == "a new prompt" else 0
    total_compute = machine.slowed_ns(load, compute + partner)
    layers = 48
    run = overlap_layers([load / layers] * layers, [total_compute / layers] * layers, [0] * layers)
    end = run.prefill_s
    waiting = end - total_compute
    step = machine.decode_step_ns(16, 2_000)
    steps = int(waiting // step) if filling == "decode steps" else 0
    gpu_bars = [computes(span.start_s, span.end_s) for span in run.computes]
    lanes = [("link", [loads(0, load, "load cached KV")]), ("prefill", gpu_bars)]
    if steps:
        share = waiting / steps
        lanes.append(("decode", [decodes(i * share, i * share + step, "") for i in range(steps)]))
    idle = waiting - steps * step
    return View(
        title=(
            f"{cached:,} cached, {new} new: the batch takes {end / MS:.0f} ms, of which the GPU idles"
            f" {idle / MS:.0f} ms"
        ),
        picture=gantt(
            [("One batch, layer by layer", lanes)],
            end,
            f"{end / MS:.0f} ms",
            f"Loading takes {load / MS:.0f} ms, computing {total_compute / MS:.0f} ms.",
        ),
        table=[
            ["quantity", "value"],
            ["loading (ms)", load / MS],
            ["computing (ms)", total_compute / MS],
            ["batch (ms)", end / MS],
            ["GPU idle (ms)", idle / MS],
            ["tokens decoded meanwhile", 16 * steps],
        ],
        source=SIMULATED,
        note=(
            "Qwen2.5-14B on an H200, pages of 32 tokens. Decoding reads GPU memory and loading uses PCIe, so"
            " the two hardly disturb each other. A new prompt of 3,400 tokens has nothing to load and fills"
            " the gap with prefill."
        ),
        numbers={"waiting_ms": idle / MS, "batch_ms": end / MS},
    )


def mixed_queue(cached: int, prompt: int, burst: int, each: int = 16, io: str = "gpu") -> list[Work]:
    """`each` questions of 256 tokens behind `cached` ones and as many new prompts, in bursts."""
    machine = Machine(io=io)
    load, compute, fresh = (
        machine.load_ns(cached),
        machine.compute_ns(256, cached),
        machine.compute_ns(prompt),
    )
    questions = [Work(f"q{i}", load, compute) for i in range(each)]
    prompts = [Work(f"n{i}", 0, fresh) for i in range(each)]
    return burst_order(questions, prompts, burst)


def _totals(queue: list[Work], batch_size: int) -> dict[str, tuple]:
    """policy -> (batches, total ns, stall ns)."""
    made = {policy: batches(queue, batch_size, policy) for policy in ("fcfs", "balanced")}
    return {
        policy: (run, sum(b.duration_ns for b in run), sum(b.stall_ns for b in run))
        for policy, run in made.items()
    }


def _predict_balancing() -> Prediction:
    totals = _totals(mixed_queue(31_000, 3_400, 8), 2)
    saved = 100 * (1 - totals["balanced"][1] / totals["fcfs"][1])
    fact = (
        f"The run says {totals['fcfs'][1] / 1e9:.2f} s against {totals['balanced'][1] / 1e9:.2f} s:"
        f" {saved:.0f} % less."
    )
    return Prediction(
        "Short questions about long documents and brand-new prompts arrive in bursts of eight, and the GPU"
        " prefills two at a time. Nothing is loaded or computed less. Choosing who shares a batch makes the"
        " whole queue …",
        (
            Option(
                "no faster: the work is the same",
                f"The work is, but half the time the GPU waited for it. {fact}",
            ),
            Option(
                "about 10 % faster",
                f"More: in the bursts of questions the GPU is idle most of the time. {fact}",
            ),
            Option("about 40 % faster", fact),
        ),
        answer=min(range(3), key=lambda i: abs((0, 10, 40)[i] - saved)),
    )


@explorer(
    title="Who shares a batch?",
    controls=[
        Choice("burst", "Requests of one kind in a row", [1, 2, 4, 8, 16], default=8),
        CONTEXT,
        Choice(
            "prompt",
            "Length of a new prompt",
            [500, 1_000, 2_000, 3_400, 6_000],
            default=3_400,
            unit="tokens",
        ),
        Choice("batch_size", "Requests per batch", [2, 4], default=2),
        Toggle("gpu_assisted", "GPU-assisted copies", default=True),
    ],
    predict=_predict_balancing,
    expects={
        "burst": "rises:saved_percent",
        "cached": "changes:saved_percent",
        "prompt": "changes:saved_percent",
        "batch_size": "changes:saved_percent",
        "gpu_assisted": "changes:saved_percent",
    },
)
def who_shares(burst, cached, prompt, batch_size, gpu_assisted) -> View:
    """The same queue, first come first served and balanced, as two Gantt charts."""
    totals = _totals(mixed_queue(cached, prompt, burst, io="gpu" if gpu_assisted else "cpu"), batch_size)
    until = max(total for _, total, _ in totals.values())
    words = {"fcfs": "First come, first served", "balanced": "Balanced"}
    saved = 100 * (1 - totals["balanced"][1] / totals["fcfs"][1])
    groups = [
        (f"{words[policy]}: {total / 1e9:.2f} s, waiting {stalled / 1e9:.2f} s", _lanes(run))
        for policy, (run, total, stalled) in totals.items()
    ]
    said = (
        f"{saved:.0f} % less time"
        if saved >= 0.5
        else ("nothing gained" if saved > -0.5 else f"{-saved:.0f} % more time")
    )
    return View(
        title=f"Balanced batches, bursts of {burst}: {said}",
        picture=gantt(
            groups,
            until,
            f"{until / 1e9:.2f} s",
            "Link and GPU, batch by batch, for first come first served and for balanced batches.",
        ),
        table=[
            ["policy", "total (s)", "waiting (s)", "computing (s)"],
            *(
                [words[p], total / 1e9, stalled / 1e9, (total - stalled) / 1e9]
                for p, (_, total, stalled) in totals.items()
            ),
        ],
        source=SIMULATED,
        note=(
            "16 questions (q) with 256 new tokens each, 16 new prompts (n); Qwen2.5-14B on an H200. What is"
            " computed is the same in both orders; what differs is how long the GPU waits for the link."
        ),
        numbers={
            "saved_percent": saved,
            "fcfs_s": totals["fcfs"][1] / 1e9,
            "balanced_s": totals["balanced"][1] / 1e9,
        },
    )


def _lanes(run) -> list:
    link, gpu, now = [], [], 0
    for batch in run:
        names = "".join(work.name[0] for work in batch.works)
        link.append(loads(now, now + batch.load_ns))
        # Computing ends with the batch: the last layer computes when its KV is there.
        gpu.append(waits(now, now + batch.stall_ns))
        gpu.append(computes(now + batch.stall_ns, now + batch.duration_ns, names))
        now += batch.duration_ns
    return [("link", link), ("GPU", gpu)]
