"""How fast the serving engine runs, and whether time and memory are linear: medians, no assertions.

Run it with ``python bench/bench_serving.py``.
"""

import statistics
import time
import tracemalloc

from kvlib.serving import simulate
from kvlib.workloads import sharegpt_like

RATE = 8.0  # requests per second, above the capacity of every policy
REPEATS = 5
MODES = {
    **{memory: {"memory": memory} for memory in ("static", "max", "pow2", "oracle", "paged")},
    "paged, watermark": {"watermark": 0.01},
    "paged, swapping": {"cpu_slots": 100_000},
    "paged, chunked": {"chunked_prefill": True, "max_num_batched_tokens": 512},
}


def seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def policies() -> None:
    requests = sharegpt_like(1500, rate=RATE, seed=0)
    print("1,500 ShareGPT-like requests at overload, full accounting (target: under 0.3 s)")
    for name, knobs in MODES.items():
        times = [seconds(lambda: simulate(requests, **knobs)) for _ in range(REPEATS)]
        median = statistics.median(times)
        rates = f"{1500 / median:8,.0f} requests/s   {0.3 / median:4.1f} x the target speed"
        print(f"  {name:16} {median:6.3f} s   {rates}")


def scaling() -> None:
    print("paged, without a row per request (target: 100,000 under 20 s)")
    for num_requests in (1_000, 10_000, 100_000):
        requests = sharegpt_like(num_requests, rate=3.0, seed=0)
        elapsed = seconds(lambda: simulate(requests, record=False))
        per_request_us = 1e6 * elapsed / num_requests
        print(f"  {num_requests:7,} requests {elapsed:7.2f} s   {per_request_us:6.1f} us/request")


def memory() -> None:
    print("peak memory of the run itself, the workload left out (target: flat)")
    for num_requests in (1_000, 10_000):
        requests = sharegpt_like(num_requests, rate=2.0, seed=0)
        tracemalloc.start()
        simulate(requests, record=False)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"  {num_requests:7,} requests {peak / 1e3:8.0f} kB")


if __name__ == "__main__":
    policies()
    scaling()
    memory()
