"""Speeds of the cluster simulator, each beside its goal (issue 7).

    .venv/bin/python bench/bench_cluster.py            the real trace if it is there, else a synthetic one
    .venv/bin/python bench/bench_cluster.py sweep      load x policy x 5 seeds on all cores, with progress

CPU seconds of this process, best of three; the sweep in seconds of wall clock.
"""

import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvlib.cluster import POLICIES, replay_pair, replay_prefill
from kvlib.cluster.sweep import Spread, sweep_prefill
from kvlib.explore import REGISTRY
from kvlib.workloads import conversation_like, read_trace

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[2] / "shared"))
TRACE_PATH = SHARED / "data" / "mooncake_conversation_trace.jsonl"
ROUNDS = 3


def best_of(work):
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def report(name, seconds, goal_s):
    print(f"{name:<58} {1e3 * seconds:>8,.0f} ms   goal <= {1e3 * goal_s:>6,.0f} ms {'met' if seconds <= goal_s else 'MISSED'}")


def bench_replays():
    trace = read_trace(TRACE_PATH) if TRACE_PATH.exists() else conversation_like(12_031, seed=0)
    print(f"{trace.name}: {len(trace.requests):,} requests, {sum(len(r.block_ids) for r in trace.requests):,} blocks")
    for policy in POLICIES:
        report(f"prefill pool, 8 instances, {policy}", best_of(partial(replay_prefill, trace, policy=policy)), 2.0)
    report("both pools, 8 + 8 instances", best_of(partial(replay_pair, trace)), 2.0)
    print("linear in requests (us per request, KVCache-centric):")
    for count in (1500, 3000, 6000, 12_000):
        part = replace(trace, requests=trace.requests[:count])
        print(f"  {count:>6,} requests {1e6 * best_of(partial(replay_prefill, part)) / count:>6.1f} us")
    print("one look-up per block, whatever the number of instances (longest prefix):")
    for instances in (1, 8, 64):
        seconds = best_of(partial(replay_prefill, trace, instances=instances, policy="longest_prefix"))
        print(f"  {instances:>3} instances {1e6 * seconds / len(trace.requests):>6.1f} us per request")


def bench_explorers():
    for explorer_id in sorted(name for name in REGISTRY if name.startswith("mooncake")):
        explorer = REGISTRY[explorer_id]
        slowest = 0.0
        for control in explorer.controls:
            for position in control.positions or ():
                start = time.process_time()
                explorer.json(json.dumps({control.name: position}))
                slowest = max(slowest, time.process_time() - start)
        report(f"slowest position of {explorer_id}", slowest, 0.050)


def sweep():
    start = time.perf_counter()
    speeds = (1.0, 2.0, 3.0)
    points = sweep_prefill(
        partial(conversation_like, 3000), range(5), tuple(POLICIES), speeds, jobs=os.cpu_count(), cache_blocks=1500,
        progress=lambda done, total: print(f"\r{done} of {total}", end="", flush=True),
    )
    print(f"\n{len(points)} runs of 3,000 requests in {time.perf_counter() - start:.1f} s")
    print(f"{'policy':<16}{'speed':>6}   reused, mean (lowest to highest)   mean TTFT (s)")
    for policy in POLICIES:
        for speed in speeds:
            chosen = [p.result for p in points if (p.policy, p.speed) == (policy, speed)]
            hits, ttft = Spread.of([r.hit_ratio for r in chosen]), Spread.of([r.ttft_s for r in chosen])
            print(
                f"{policy:<16}{speed:>5g}×   {hits.mean:>6.1%} ({hits.low:.1%} to {hits.high:.1%})"
                f"   {ttft.mean:>12,.2f} ({ttft.low:,.2f} to {ttft.high:,.2f})"
            )


if __name__ == "__main__":
    if sys.argv[1:] == ["sweep"]:
        sweep()
    else:
        bench_replays()
        bench_explorers()
