"""The serving engine at overload, its growth with the number of requests, and chapter 6's rate table.

Run it with ``python bench/bench_serving.py``.
"""

import time
import tracemalloc
from itertools import product

from speeds import Speed, best_cpu_s, cpu_seconds, report

from kvlib.figures.data.make_serving import POLICIES, SYSTEMS, WORKLOADS, best
from kvlib.serving import simulate
from kvlib.serving.sweep import run_all
from kvlib.workloads import sharegpt_like

OVERLOAD_PER_S = 8.0  # above the capacity of every policy
MODES = {
    **{memory: {"memory": memory} for memory in POLICIES},
    "watermark": {"watermark": 0.01},
    "swapping": {"cpu_slots": 100_000},
    "chunked": {"chunked_prefill": True, "max_num_batched_tokens": 512},
}


def overload():
    requests = sharegpt_like(1500, rate=OVERLOAD_PER_S, seed=0)
    for name, knobs in MODES.items():
        took_s = best_cpu_s(lambda: simulate(requests, **knobs), rounds=5)
        yield Speed(f"serving.{name}", f"1,500 chats at overload, every block counted: {name}", took_s, "s", 0.3)
        if name == "paged":
            yield Speed("serving.rate", "1,500 chats at overload, paged, as a rate", 1500 / took_s, "requests/s", None, True)


def lean(num_requests: int) -> float:
    """CPU seconds for that many chats, without a row per request."""
    requests = sharegpt_like(num_requests, rate=3.0, seed=0)
    return cpu_seconds(lambda: simulate(requests, record=False))


def growth():
    small_s, large_s = lean(10_000), lean(100_000)
    yield Speed("serving.100000", "100,000 chats, paged", large_s, "s", 20)
    ratio = large_s / small_s / 10
    yield Speed("serving.linear", "time per chat, 100,000 chats against 10,000", ratio, "times", 1.5)


def peak_bytes(num_requests: int) -> int:
    """Peak memory of a run itself, its workload left out."""
    requests = sharegpt_like(num_requests, rate=2.0, seed=0)
    tracemalloc.start()
    simulate(requests, record=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def memory():
    ratio = peak_bytes(10_000) / peak_bytes(1_000)
    yield Speed("serving.memory", "peak memory, 10,000 chats against 1,000", ratio, "times", 2)


def rate_table():
    """Every model, workload and policy of chapter 6's table, each searched by bisection, on two processes."""
    tasks = [{"system": s, "workload": w, "memory": m} for s, w, m in product(SYSTEMS, WORKLOADS, POLICIES)]
    start = time.perf_counter()
    run_all(best, tasks, jobs=2)
    took_s = time.perf_counter() - start
    yield Speed("serving.rate_table", f"chapter 6's rate table, {len(tasks)} searches, 2 processes", took_s, "s", 90)


def measure():
    for part in (overload, growth, memory, rate_table):
        yield from part()


if __name__ == "__main__":
    report(measure())
