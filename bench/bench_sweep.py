"""How long chapter 6's rate table takes, here and on two processes: seconds, no assertions.

Run it with ``python bench/bench_sweep.py``.
"""

import time
from functools import partial

from kvlib.serving.sweep import highest_rate, run_all
from kvlib.workloads import alpaca_like, sharegpt_like

MEMORIES = ("static", "max", "pow2", "oracle", "paged")
WORKLOADS = {"ShareGPT": partial(highest_rate, sharegpt_like), "Alpaca": partial(highest_rate, alpaca_like)}
NUM_REQUESTS = 500


def main() -> None:
    for name, search in WORKLOADS.items():
        tasks = [{"memory": memory, "num_requests": NUM_REQUESTS} for memory in MEMORIES]
        for jobs in (1, 2):
            start = time.perf_counter()
            rates = run_all(search, tasks, jobs=jobs)
            seconds = time.perf_counter() - start
            shown = "  ".join(f"{memory} {rate:.3g}" for memory, rate in zip(MEMORIES, rates))
            print(f"{name:<9} {NUM_REQUESTS} requests, {jobs} job(s): {seconds:5.1f} s   {shown}")


if __name__ == "__main__":
    main()
