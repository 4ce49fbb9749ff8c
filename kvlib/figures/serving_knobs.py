"""Chapter 6: from knobs to symptoms, and a trace of the reader's own."""

from __future__ import annotations

from functools import lru_cache

from kvlib.cost import linear_flops
from kvlib.errors import ConfigError
from kvlib.explore import SIMULATED, Choice, File, View, explorer
from kvlib.explore.palette import LIMIT, POLICY
from kvlib.figures.charts import Line, axis, line_chart
from kvlib.figures.serving_data import NAMES
from kvlib.serving import ServingResult, simulate
from kvlib.specs import get_gpu, get_model, kv_slots
from kvlib.workloads import Request, busiest_window, read_trace, sharegpt_like

MODEL, GPU = "opt-13b", "a100-40gb"
NUM_REQUESTS, SEED = 80, 0
WHOLE_PROMPTS = 0
SMALLEST_RATIO, LARGEST_RATIO = 1e-2, 1e2


@lru_cache(maxsize=256)
def run(max_num_seqs: int, step_tokens: int, memory_percent: int, watermark: float, num_gpus: int, rate: float) -> ServingResult:
    """80 ShareGPT-like requests under these knobs; ``step_tokens`` 0 leaves prompts whole."""
    chunks = {"chunked_prefill": True, "max_num_batched_tokens": step_tokens} if step_tokens else {}
    slots = kv_slots(get_model(MODEL), get_gpu(GPU), num_gpus=num_gpus) * memory_percent // 100
    return simulate(
        sharegpt_like(NUM_REQUESTS, rate=rate, seed=SEED), model=MODEL, gpu=GPU, num_slots=slots,
        max_num_seqs=max_num_seqs, watermark=watermark, num_gpus=num_gpus, **chunks,
    )


def idle_compute(result: ServingResult, num_gpus: int) -> float:
    """Share of the time that the arithmetic units had nothing to do, by the FLOPs of the linear layers."""
    prompts = sum(row.num_input_tokens for row in result.per_request)
    flops = linear_flops(get_model(MODEL), prompts + result.output_tokens + result.recomputed_tokens)
    return 1 - flops / (num_gpus * get_gpu(GPU).flops_per_s * result.duration_s)


def longest_step_s(result: ServingResult) -> float:
    """The longest step in which somebody decodes or is prefilled: the longest pause between two tokens."""
    return max((one.end_s - one.start_s) / one.num_steps for one in result.timeline if one.num_running)


def symptoms(result: ServingResult, num_gpus: int) -> dict[str, float]:
    """What an operator sees. All but the first are never 0, so that they can be compared as ratios."""
    return {
        "preemptions": result.preemptions,
        "P99 TTFT (s)": result.percentile("ttft_s", 99),
        "P99 TBT (ms)": 1e3 * result.percentile("tbt_s", 99),
        "longest step (ms)": 1e3 * longest_step_s(result),
        "tokens/s": result.output_tokens_per_s,
        "memory in use (%)": 100 * result.utilisation,
        "idle compute (%)": 100 * idle_compute(result, num_gpus),
    }


def cause(result: ServingResult, max_num_seqs: int) -> str:
    """The first thing to suspect, read off the run as an operator would."""
    queued = any(one.num_waiting for one in result.timeline)
    full = max(one.num_running for one in result.timeline) >= max_num_seqs
    if result.preemptions > NUM_REQUESTS // 20:
        return "memory is short, and requests throw one another out"
    if queued and full:
        return f"max_num_seqs keeps requests out while {100 * (1 - result.utilisation):.0f} % of the memory is empty"
    if result.percentile("ttft_s", 99) > 1:
        return "requests queue for memory, but few are thrown out"
    return "no symptom: this load is served with ease"


BASE = {"max_num_seqs": 256, "step_tokens": WHOLE_PROMPTS, "memory_percent": 60, "watermark": 0.0, "num_gpus": 1, "rate": 2.0}


@explorer(
    title="From knobs to symptoms",
    controls=[
        Choice("max_num_seqs", "max_num_seqs", [2, 4, 8, 12, 16, 24, 256], default=256),
        Choice("step_tokens", "Tokens per step", [
            (WHOLE_PROMPTS, "prompts stay whole"), (512, "512, prompts in chunks"), (256, "256, prompts in chunks"),
            (128, "128, prompts in chunks"),
        ], default=WHOLE_PROMPTS),
        Choice("memory_percent", "KV memory", [(p, f"{p} %") for p in (30, 40, 60, 80, 100)], default=60),
        Choice("watermark", "Watermark", [(0.0, "none"), (0.01, "1 %"), (0.05, "5 %"), (0.1, "10 %")], default=0.0),
        Choice("num_gpus", "Tensor parallel", [1, 2, 4], default=1, unit="GPUs"),
        Choice("rate", "Load", [0.5, 1.0, 2.0, 3.0, 4.0], default=2.0, unit="requests/s"),
    ],
    expects={
        "max_num_seqs": "falls:p99_ttft_s", "step_tokens": "changes:longest_step_ms", "memory_percent": "falls:p99_ttft_s",
        "watermark": "changes:preemptions", "num_gpus": "rises:idle_percent", "rate": "rises:preemptions",
    },
)
def symptom(max_num_seqs, step_tokens, memory_percent, watermark, num_gpus, rate) -> View:
    """Every symptom, beside the same load under the starting knobs."""
    result = run(max_num_seqs, step_tokens, memory_percent, watermark, num_gpus, rate)
    here, base = symptoms(result, num_gpus), symptoms(run(**BASE), BASE["num_gpus"])
    names = [name for name in here if name != "preemptions"]
    ratios = [min(max(here[n] / base[n], SMALLEST_RATIO), LARGEST_RATIO) for n in names]
    figure = line_chart(
        [Line("your knobs", ratios, names, POLICY["paged"], markers=True)],
        axis("times the starting value", log=True, low=SMALLEST_RATIO / 1.5, high=LARGEST_RATIO * 1.5),
        {**axis("", categories=names), "autorange": "reversed"},
        walls=[(1, "starting knobs", LIMIT)],
    )
    figure["data"][0] |= {"mode": "markers", "marker": {"color": POLICY["paged"], "size": 13, "symbol": "diamond"}}
    figure["layout"]["showlegend"] = False
    return View(
        title=f"{result.preemptions} preemptions, P99 TTFT {here['P99 TTFT (s)']:.2f} s: {cause(result, max_num_seqs)}",
        picture=figure,
        table=[["symptom", "your knobs", "starting knobs"], *([n, here[n], base[n]] for n in here)],
        source=SIMULATED,
        note=(
            f"{NUM_REQUESTS} ShareGPT-like requests, OPT-13B on A100s, a short run. Idle compute counts the linear layers only. More GPUs "
            "talk to each other for nothing here; a real engine pays for that. Ratios beyond 100 or below 1/100 are drawn there."
        ),
        numbers={
            "preemptions": result.preemptions, "p99_ttft_s": here["P99 TTFT (s)"],
            "longest_step_ms": here["longest step (ms)"], "idle_percent": here["idle compute (%)"],
        },
    )


# ---------------------------------------------------------------- a trace of the reader's own

SAMPLE, WINDOW_S = 120, 60.0
MODELS = {"opt-13b": "a100-40gb", "llama-3-8b": "a100-80gb"}


def sample_of(path: str) -> tuple[Request, ...]:
    """The first requests of the busiest minute, from time 0; without a file, a drawn load."""
    if not path:
        return sharegpt_like(SAMPLE, rate=2.0, seed=SEED)
    busy = busiest_window([one for one in read_trace(path).requests if one.num_input_tokens], WINDOW_S)[:SAMPLE]
    start_s = busy[0].arrival_s
    return tuple(Request(one.arrival_s - start_s, one.num_input_tokens, one.num_output_tokens) for one in busy)


@explorer(
    title="A trace of your own",
    controls=[
        File("path", "Your trace", accept=".jsonl,.csv,.gz"),
        Choice("speed", "Replayed at", [(s, f"{s:g} × its speed") for s in (0.25, 0.5, 1.0, 2.0, 4.0)], default=1.0),
        Choice("model", "Model", [(m, f"{m} on one {g}") for m, g in MODELS.items()], default="opt-13b"),
    ],
    expects={"speed": "rises:max_ms", "model": "changes:max_ms"},
)
def your_trace(path, speed, model) -> View:
    """Paging against reservation on the busiest minute of a trace."""
    requests = [
        Request(one.arrival_s / speed, one.num_input_tokens, one.num_output_tokens) for one in sample_of(path)
    ]
    if not any(one.num_output_tokens for one in requests):
        raise ConfigError("path: no request of its busiest minute generates a token, expected at least one")
    longest = max(one.num_input_tokens + one.num_output_tokens for one in requests)
    slots = kv_slots(get_model(model), get_gpu(MODELS[model]))
    if longest > slots:
        raise ConfigError(f"path: its longest request has {longest:,} tokens, expected at most the {slots:,} slots of {model}")
    policies = ("paged", "oracle", "max")
    results = {
        p: simulate(requests, model=model, gpu=MODELS[model], memory=p, max_len=longest) for p in policies
    }
    paged, reserved = (1e3 * results[p].normalized_latency_s for p in ("paged", "max"))
    where = "your trace, its busiest minute" if path else "no file yet, so a drawn load"
    return View(
        title=f"{len(requests)} requests ({where}): {paged:.0f} ms a token paged, {reserved:.0f} ms reserving the maximum",
        picture=line_chart(
            [
                Line(NAMES[p], *_shares(results[p]), POLICY[p], dash=i)
                for i, p in enumerate(policies)
            ],
            axis("time to first token (s)", log=True, low=0.01, high=1000),
            axis("requests served by then (%)", low=0, high=100),
        ),
        table=[
            ["policy", "ms/token", "P50 TTFT (s)", "P99 TTFT (s)", "running", "preemptions"],
            *(
                [
                    NAMES[p], 1e3 * r.normalized_latency_s, r.percentile("ttft_s", 50), r.percentile("ttft_s", 99),
                    r.mean_running, r.preemptions,
                ]
                for p, r in results.items()
            ),
        ],
        source=SIMULATED,
        note=(
            f"Reads Mooncake, Azure and BurstGPT files and takes at most {SAMPLE} requests of the busiest minute. The longest of these "
            f"({longest:,} tokens) is what Max reserves. The file stays on your machine."
        ),
        numbers={"paged_ms": paged, "max_ms": reserved},
    )


def _shares(result: ServingResult) -> tuple[list[float], list[float]]:
    """The distribution of TTFT at every fifth per cent."""
    percents = list(range(5, 101, 5))
    return [result.percentile("ttft_s", p) for p in percents], percents
