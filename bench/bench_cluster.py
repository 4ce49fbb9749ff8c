"""The cluster simulator: ``python bench/bench_cluster.py``, or with ``sweep`` load × policy × 5 seeds on all cores."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from mooncake_trace import conversation_trace
from speeds import Speed, best_cpu_s, report

from kvlib.cluster import POLICIES, Spread, replay_pair, replay_prefill, sweep_prefill
from kvlib.workloads import conversation_like

SPEEDS = (1.0, 2.0, 3.0)


def measure() -> Iterator[Speed]:
    trace = conversation_trace()
    size = f"{len(trace.requests):,} requests"
    pair_s = best_cpu_s(lambda: replay_pair(trace))
    yield Speed("cluster.pair", f"{size} through 8 prefill and 8 decode instances", pair_s, "s", 2)
    yield Speed("cluster.rate", f"{size} through both pools, as a rate", len(trace.requests) / pair_s, "requests/s", None, True)
    for policy in POLICIES:
        took_s = best_cpu_s(lambda: replay_prefill(trace, policy=policy))
        yield Speed(f"cluster.{policy}", f"{size} through 8 prefill instances, {policy}", took_s, "s", 2)
    yield growth_in_requests(trace)
    yield growth_in_instances(trace)


def growth_in_requests(trace) -> Speed:
    few, many = (replace(trace, requests=trace.requests[:count]) for count in (1_500, 12_000))
    ratio = best_cpu_s(lambda: replay_prefill(many)) / best_cpu_s(lambda: replay_prefill(few)) / 8
    return Speed("cluster.linear", "time per request, 12,000 requests against 1,500", ratio, "times", 1.5)


def growth_in_instances(trace) -> Speed:
    """Blocks are looked up once, whatever the number of instances; only the choice among them grows."""
    run = partial(replay_prefill, trace, policy="longest_prefix")
    ratio = best_cpu_s(lambda: run(instances=64)) / best_cpu_s(lambda: run(instances=8))
    return Speed("cluster.instances", "time per request, 64 instances against 8 (8 if linear)", ratio, "times", 8)


def sweep() -> None:
    points = sweep_prefill(
        partial(conversation_like, 3000), range(5), tuple(POLICIES), SPEEDS, jobs=os.cpu_count(), cache_blocks=1500,
        progress=lambda done, total: print(f"\r{done} of {total}", end="", flush=True),
    )
    print(f"\n{'policy':<16}{'speed':>6}   reused, mean (lowest to highest)   mean TTFT (s)")
    for policy in POLICIES:
        for speed in SPEEDS:
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
        report(measure())
