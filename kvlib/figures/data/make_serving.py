"""Write ``serving.json``: the runs of chapter 6 that are too long for a slider.

    python kvlib/figures/data/make_serving.py [jobs]

Every number is simulated, so the file is the same on every machine and with any number of jobs. A test
repeats a sample of it. Requests per run are fewer than the paper's one-hour traces; the counts stand below
and in the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from kvlib.serving.sweep import highest_rate, latency_curve, run_all, run_at
from kvlib.specs import get_gpu, get_model, kv_slots
from kvlib.workloads import Request, alpaca_like, sharegpt_like
from kvlib.workloads.paper_tasks import PREFIX_TOKENS, chatbot_like, translation_like
from kvlib.workloads.synthetic import fixed_lengths

SEED = 0
# Kwon et al. 2023, table 1: the GPUs of each model.
SYSTEMS = {
    "OPT-13B": {"model": "opt-13b", "gpu": "a100-40gb", "num_gpus": 1},
    "OPT-66B": {"model": "opt-66b", "gpu": "a100-40gb", "num_gpus": 4},
    "OPT-175B": {"model": "opt-175b", "gpu": "a100-80gb", "num_gpus": 8},
}
# Table 1 again: the slots the paper had. Ours leave 10 % of each GPU aside, which on OPT-66B costs nearly half.
PAPER_SLOTS = {"OPT-13B": 15_700, "OPT-66B": 9_700, "OPT-175B": 60_100}
WORKLOADS = {
    "ShareGPT": sharegpt_like,
    "Alpaca": alpaca_like,
    "chat": chatbot_like,
    "translation, 1-shot": partial(translation_like, shots=1),
    "translation, 5-shot": partial(translation_like, shots=5),
}
# Short answers come and go quickly, so as many seconds of load need more requests.
NUM_REQUESTS = {
    "ShareGPT": 500, "Alpaca": 1500, "chat": 500, "translation, 1-shot": 1500, "translation, 5-shot": 1500,
}
# Only paging can share a prefix.
SHARED = {"translation, 1-shot": PREFIX_TOKENS[1], "translation, 5-shot": PREFIX_TOKENS[5]}
POLICIES = ("static", "max", "pow2", "oracle", "paged")
# Arrival rates as shares of the highest rate that paging serves within 50 ms per token.
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9, 1.0, 1.15)

RUN_LENGTHS = (100, 200, 400, 800, 1600, 3200)
LOADS = (0.7, 0.9, 1.0, 1.1, 1.25)

MEMORY_TIMES = (0.5, 1, 2, 4, 8, 16)
AMPLE_WORKLOADS = {
    "ShareGPT": sharegpt_like,
    "classification": partial(fixed_lengths, num_input_tokens=1000, num_output_tokens=2),
}
# A prompt of 1,000 tokens takes 140 ms to prefill, so two answer tokens cannot keep to 50 ms each.
AMPLE_LIMITS_S = {"ShareGPT": 0.05, "classification": 0.2}
AMPLE_REQUESTS = 600

PREFIXES = (0, 64, 128, 256, 512, 1024)
PREFIX_REQUESTS = {"chat": 300, "translation": 1000}
# OPT stops at 2,048 tokens; a long prefix before a long chat needs more.
PREFIX_MAX_LEN = 4096


def settings(system: str, workload: str, memory: str) -> dict:
    """What ``simulate`` needs for one line of the curves."""
    shares = memory == "paged" and workload in SHARED
    return {**SYSTEMS[system], "memory": memory, **({"shared_prefix_tokens": SHARED[workload]} if shares else {})}


def best(system: str, workload: str, memory: str, **more) -> float:
    """The highest rate within 50 ms per token; ``more`` knobs override."""
    own = {**settings(system, workload, memory), **more}
    return round(highest_rate(WORKLOADS[workload], num_requests=NUM_REQUESTS[workload], seed=SEED, **own), 4)


def best_with_paper_slots(system: str, memory: str) -> float:
    """The same for ShareGPT, with as many KV slots as the paper had."""
    return best(system, "ShareGPT", memory, num_slots=PAPER_SLOTS[system])


def curve(system: str, workload: str, memory: str, paged_rate: float) -> list[list[float]]:
    """Rate (requests/s), mean latency per token (ms) and requests running, along one line of the curves."""
    rates = [round(share * paged_rate, 4) for share in SHARES]
    own = settings(system, workload, memory)
    runs = latency_curve(WORKLOADS[workload], rates, num_requests=NUM_REQUESTS[workload], seed=SEED, **own)
    return [
        [run.rate, round(1e3 * run.result.normalized_latency_s, 2), round(run.result.mean_running, 2)] for run in runs
    ]


def watched(load: float, num_requests: int, capacity: float) -> float:
    """Mean latency per token (ms) of a run of some length, at a multiple of the capacity."""
    run = run_at(sharegpt_like, load * capacity, num_requests=num_requests, seed=SEED)
    return round(1e3 * run.result.normalized_latency_s, 2)


def ample(workload: str, times: float, memory: str) -> float:
    """The highest rate with several times the KV memory of an A100-40GB."""
    slots = int(times * kv_slots(get_model("opt-13b"), get_gpu("a100-40gb")))
    return round(
        highest_rate(
            AMPLE_WORKLOADS[workload], limit_s=AMPLE_LIMITS_S[workload], num_requests=AMPLE_REQUESTS, seed=SEED,
            num_slots=slots, memory=memory,
        ), 4,
    )


def behind_prefix(base: Callable, prefix_tokens: int, n: int, rate: float, seed: int) -> tuple[Request, ...]:
    """The requests of ``base``, each behind the same ``prefix_tokens`` tokens."""
    return tuple(
        Request(one.arrival_s, one.num_input_tokens + prefix_tokens, one.num_output_tokens)
        for one in base(n, rate, seed)
    )


def sentences(n: int, rate: float, seed: int) -> tuple[Request, ...]:
    """The translation load without its examples."""
    return tuple(
        Request(one.arrival_s, one.num_input_tokens - PREFIX_TOKENS[1], one.num_output_tokens)
        for one in translation_like(n, rate, seed, shots=1)
    )


PREFIXED = {"chat": sharegpt_like, "translation": sentences}


def shared(workload: str, prefix_tokens: int, sharing: bool) -> float:
    """The highest rate behind a prefix, computed once for everybody or once for each."""
    load = partial(behind_prefix, PREFIXED[workload], prefix_tokens)
    knob = {"shared_prefix_tokens": prefix_tokens} if sharing and prefix_tokens else {}
    found = highest_rate(load, num_requests=PREFIX_REQUESTS[workload], seed=SEED, max_len=PREFIX_MAX_LEN, **knob)
    return round(found, 4)


def table(function: Callable, tasks: list[dict], key: tuple[str, ...], jobs: int) -> dict[str, object]:
    """``function(**task)`` for every task, under its ``key`` arguments joined with a bar."""
    results = run_all(function, tasks, jobs=jobs)
    return {"|".join(str(task[name]) for name in key): result for task, result in zip(tasks, results)}


def grid(**axes) -> list[dict]:
    """Every combination of the values of these arguments."""
    return [dict(zip(axes, values)) for values in product(*axes.values())]


def main(jobs: int) -> None:
    lines, line = grid(system=SYSTEMS, workload=WORKLOADS, memory=POLICIES), ("system", "workload", "memory")
    rates = table(best, lines, line, jobs)
    for task in lines:
        task["paged_rate"] = rates[f"{task['system']}|{task['workload']}|paged"]
    capacity = round(run_at(sharegpt_like, 1e3, num_requests=max(RUN_LENGTHS), seed=SEED).result.requests_per_s, 4)
    runs = grid(load=LOADS, num_requests=RUN_LENGTHS, capacity=[capacity])
    memories = grid(workload=AMPLE_WORKLOADS, times=MEMORY_TIMES, memory=("max", "oracle", "paged"))
    prefixes = grid(workload=PREFIXED, prefix_tokens=PREFIXES, sharing=(False, True))
    made = {
        "provenance": {
            "command": "python kvlib/figures/data/make_serving.py",
            "workload": f"{AMPLE_REQUESTS} requests a run of the searches over memory, {PREFIX_REQUESTS} of those over the "
            f"prefix; seed {SEED}; blocks of 16; mean latency per token within 50 ms, "
            "1,000-token classification within 200 ms",
        },
        "num_requests": NUM_REQUESTS,
        "highest_rates": rates,
        "with_paper_slots": table(
            best_with_paper_slots, grid(system=SYSTEMS, memory=POLICIES), ("system", "memory"), jobs
        ),
        "curves": table(curve, lines, line, jobs),
        "capacity": capacity,
        "watched": table(watched, runs, ("load", "num_requests"), jobs),
        "ample": table(ample, memories, ("workload", "times", "memory"), jobs),
        "shared": table(shared, prefixes, ("workload", "prefix_tokens", "sharing"), jobs),
    }
    text = json.dumps(made, indent=0, ensure_ascii=False) + "\n"
    Path(__file__).with_name("serving.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
