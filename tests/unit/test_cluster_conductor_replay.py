"""Replays: the laws of queues, orderings over seeds, degenerate settings and bad input."""

import math
import os
import subprocess
import sys
from functools import partial

import pytest

from kvlib.cluster import (
    POLICIES, PrefillSetup, Spread, cluster_after, replay_pair, replay_prefill, sweep_prefill,
)
from kvlib.cluster.prefill_cluster import PrefillCluster
from kvlib.cost import prefill_s
from kvlib.errors import ConfigError
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model
from kvlib.workloads import Request, Trace, conversation_like, prefix_trace, read_trace

SEEDS = range(5)
NODE = {"model": get_model("llama-2-70b"), "gpu": get_gpu("a800-80gb"), "num_gpus": 8}


@pytest.fixture(scope="module")
def traces():
    return [prefix_trace("conversation", 240, rate=0.25, seed=seed) for seed in SEEDS]


def trace_of(*requests):
    """(arrival, tokens, block ids) triples as a trace in blocks of 512."""
    return Trace("by hand", "synthetic", tuple(Request(t, n, 10, ids) for t, n, ids in requests), 512)


def finished(trace, **knobs):
    cluster = cluster_after(trace, len(trace.requests), **knobs)
    cluster.run_until()
    return cluster


# --- laws ---


@pytest.mark.parametrize("policy", POLICIES)
def test_laws_of_every_policy(traces, policy):
    knobs = {"policy": policy, "speed": 24, "cache_blocks": 200, "link": "net-25g", "ttft_slo_s": 8.0}
    result, cluster = replay_prefill(traces[0], **knobs), finished(traces[0], **knobs)
    # L1: every request is accounted for, and every block.
    assert result.completed + result.rejected == result.submitted == len(traces[0].requests)
    assert len(result.ttfts_s) == sum(result.requests_by_instance) == result.completed
    tokens = sum(job.request.num_input_tokens for job in cluster.jobs)
    assert result.computed_tokens + result.reused_blocks * 512 >= tokens
    # L5: arrival, pull, start and end in this order, one prefill at a time, in order of arrival.
    for index in range(8):
        jobs = [job for job in cluster.jobs if job.instance == index]
        for before, after in zip(jobs, jobs[1:]):
            assert before.end_ns <= after.start_ns and before.arrival_ns <= after.arrival_ns
    for job in cluster.jobs:
        assert job.arrival_ns <= (job.pulled_ns or job.arrival_ns) <= job.start_ns < job.end_ns
        assert (job.pulled_ns is None) == (job.pulled_blocks == 0) == (job.source is None)
        assert job.source != job.instance
    # Utilization law: busy time is completed requests times their mean prefill.
    assert math.fsum(result.busy_s) == pytest.approx(math.fsum(job.prefill_ns for job in cluster.jobs) / 1e9)
    assert all(busy <= result.duration_s for busy in result.busy_s)
    # Little's law: the area under "requests in the system", counted event by event, is the sum of the TTFTs.
    changes = sorted([(j.arrival_ns, 1) for j in cluster.jobs] + [(j.end_ns, -1) for j in cluster.jobs])
    area, inside = 0, 0
    for (time, change), (later, _) in zip(changes, [*changes[1:], changes[-1]]):
        inside += change
        area += inside * (later - time)
    assert area / 1e9 == pytest.approx(math.fsum(result.ttfts_s)) and inside == 0
    cluster.pool.check_integrity()


def test_a_pull_takes_only_what_was_computed_before(traces):  # L5, L6
    cluster = finished(traces[0], speed=24, cache_blocks=200)
    pulls = [job for job in cluster.jobs if job.pulled_blocks]
    assert len(pulls) >= 5
    for job in pulls:
        needed = job.request.block_ids[job.reused_blocks - 1]
        assert any(
            needed in other.request.block_ids and other.instance == job.source and other.end_ns <= job.arrival_ns
            for other in cluster.jobs
        )


@pytest.mark.parametrize("policy", ["least_load", "longest_prefix", "cache_aware", "round_robin"])
def test_the_estimate_is_exact_where_nothing_is_pulled(traces, policy):
    result = replay_prefill(traces[1], policy=policy, speed=24, cache_blocks=200)
    assert result.ttfts_s == result.estimates_s


def test_decisions_do_not_depend_on_what_comes_later(traces):  # L6: no oracle
    whole = finished(traces[2], speed=24, cache_blocks=200)
    half = cluster_after(traces[2], 120, speed=24, cache_blocks=200)
    decision = [(j.instance, j.reused_blocks, j.pulled_blocks, j.source) for j in whole.jobs]
    assert decision[:120] == [(j.instance, j.reused_blocks, j.pulled_blocks, j.source) for j in half.jobs]


# --- derivations ---


def test_one_request_takes_the_cost_models_prefill():
    result = replay_prefill(trace_of((0.0, 1000, (1, 2))))
    assert result.ttft_s == pytest.approx(prefill_s(NODE["model"], NODE["gpu"], 1000, num_gpus=8), rel=1e-3)
    assert (result.hit_ratio, result.computed_tokens, result.transferred_tokens) == (0.0, 1000, 0)


def test_a_fully_cached_prompt_still_computes_its_last_token():
    result = replay_prefill(trace_of((0.0, 1000, (1, 2)), (9.0, 1000, (1, 2))), instances=1)
    assert (result.hit_ratio, result.computed_tokens) == (0.5, 1001)
    assert result.ttfts_s[1] == pytest.approx(prefill_s(NODE["model"], NODE["gpu"], 1, 999, num_gpus=8), rel=0.01)


def test_a_hot_prefix_is_pulled_and_stays():
    # A long prompt keeps instance 0 busy, so the second request with prefix (1..8) goes to instance 1 and pulls;
    # afterwards both instances hold the prefix.
    prefix = tuple(range(1, 9))
    trace = trace_of(
        (0.0, 8 * 512, prefix), (10.0, 40_000, prefix + tuple(range(100, 171))), (10.1, 8 * 512 + 9, (*prefix, 300)),
    )
    cluster = finished(trace, instances=2)
    assert [job.instance for job in cluster.jobs] == [0, 0, 1]
    assert (cluster.jobs[2].pulled_blocks, cluster.jobs[2].source) == (8, 0)
    assert cluster.pool.match(prefix).held == [8, 8]
    # Switched to balance without reach, it computes the prefix again.
    alone = finished(trace, instances=2, policy="cache_aware")
    assert (alone.jobs[2].instance, alone.jobs[2].pulled_blocks) == (1, 0)


def test_what_is_still_being_computed_cannot_be_pulled():
    prefix = tuple(range(1, 80))
    trace = trace_of((0.0, 79 * 512, prefix), (0.001, 79 * 512, prefix))
    cluster = finished(trace, instances=2, policy="random_pull", seed=2)
    assert [job.pulled_blocks for job in cluster.jobs] == [0, 0]


def test_longest_prefix_falls_into_the_trap_of_block_zero(traces):
    for trace in traces:
        result = replay_prefill(trace, policy="longest_prefix", cache_blocks=200)
        assert result.imbalance == 8.0
        assert sorted(result.requests_by_instance)[:7] == [0] * 7


# --- orderings over five seeds (L7.conductor, L9.sched: random ~ load < cache-aware < + replication) ---


def test_hit_ratios_are_ordered_on_every_seed(traces):
    for trace in traces:
        knobs = {"speed": 16, "cache_blocks": 200}
        blind, load, aware, centric = (
            replay_prefill(trace, policy=p, **knobs)
            for p in ("random", "least_load", "cache_aware", "kvcache_centric")
        )
        assert max(blind.hit_ratio, load.hit_ratio) < aware.hit_ratio < centric.hit_ratio
        assert centric.computed_tokens < aware.computed_tokens < load.computed_tokens
        assert aware.ttft_s < blind.ttft_s


def test_under_high_load_reuse_decides_the_waiting_time():
    """L9.sched, at about the lecture's 12.2 requests/s: more than 5 times between balance and cache-aware."""
    for seed in (1, 2):
        trace = prefix_trace("documents", 800, rate=12.0, seed=seed)
        balance, aware = (
            replay_prefill(trace, policy=p, cache_blocks=600).ttft_s for p in ("least_load", "cache_aware")
        )
        assert balance > 5 * aware


def test_more_cache_never_hurts_the_single_instance(traces):  # L7: LRU is a stack algorithm
    hits = [replay_prefill(traces[0], instances=1, cache_blocks=c).hit_ratio for c in (250, 500, 1000, 2000, 8000)]
    assert hits == sorted(hits) and hits[0] < hits[-1]


# --- degenerate settings ---


def test_with_one_instance_all_policies_are_one(traces):
    results = {policy: replay_prefill(traces[0], policy=policy, instances=1) for policy in POLICIES}
    assert len(set(results.values())) == 1


def test_on_a_useless_network_the_estimates_chain_requests_to_the_holder(traces):
    # Algorithm 1 has no "compute it here instead": whoever lacks block 0 would have to pull, which takes minutes.
    slow = LinkSpec("one megabyte a second", 1e6)
    chained = replay_prefill(traces[0], link=slow, speed=8, cache_blocks=200)
    free = replay_prefill(traces[0], policy="cache_aware", speed=8, cache_blocks=200)
    assert chained.transferred_tokens == 0
    assert chained.imbalance > 2 * free.imbalance and chained.ttft_s > 5 * free.ttft_s


def test_an_impossible_slo_refuses_everybody(traces):
    result = replay_prefill(traces[0], ttft_slo_s=1e-6)
    assert (result.rejected, result.completed) == (240, 0)
    assert (result.hit_ratio, result.imbalance, result.ttft_s, result.ttft_percentile_s(90)) == (0.0, 1.0, 0.0, 0.0)


def test_rejected_requests_leave_nothing_behind():
    # The second prompt is refused (12 s of prefill against 5), so the third finds only block 1.
    trace = trace_of((0.0, 512, (1,)), (1.0, 70_000, (1, *range(50, 186))), (2.0, 1024, (1, 50)))
    result = replay_prefill(trace, ttft_slo_s=5.0)
    assert (result.rejected, result.reused_blocks, result.references) == (1, 1, 3)


def test_percentiles_by_hand():
    # Nearest rank: of four, 50 % is the second and 90 % the fourth.
    result = replay_prefill(trace_of(*((100.0 * i, 512 * (i + 1), tuple(range(9 * i, 10 * i + 1))) for i in range(4))))
    ranked = sorted(result.ttfts_s)
    assert (result.ttft_percentile_s(50), result.ttft_percentile_s(90)) == (ranked[1], ranked[3])
    for bad in (0, 101, -1, float("nan"), "90"):
        with pytest.raises(ConfigError, match="percent"):
            result.ttft_percentile_s(bad)


# --- bad input ---


@pytest.mark.parametrize(
    "knobs, field",
    [
        ({"instances": 0}, "instances"), ({"instances": True}, "instances"), ({"cache_blocks": 0}, "cache_blocks"),
        ({"policy": "fastest"}, "policy"), ({"threshold": 0.5}, "threshold"), ({"ttft_slo_s": 0}, "ttft_slo_s"),
        ({"ttft_slo_s": -1}, "ttft_slo_s"), ({"ttft_slo_s": float("nan")}, "ttft_slo_s"), ({"speed": 0}, "speed"),
        ({"link": "pigeon"}, "link"), ({"model": "gpt-9"}, "model"), ({"gpu": "abacus"}, "gpu"),
        ({"num_gpus": 0}, "num_gpus"), ({"seed": -1}, "seed"), ({"seed": 1.5}, "seed"),
    ],
)  # fmt: skip
def test_bad_knobs_are_refused_by_name(traces, knobs, field):
    with pytest.raises(ConfigError, match=field):
        replay_prefill(traces[0], **knobs)


def test_unknown_knobs_are_refused(traces):
    with pytest.raises(TypeError, match="bandwith"):
        replay_prefill(traces[0], bandwith=1)


def test_bad_traces_are_refused():
    no_ids = Trace("x", "azure", (Request(0.0, 10, 1),), None)
    with pytest.raises(ConfigError, match="request 0 has no block_ids"):
        replay_prefill(no_ids)
    with pytest.raises(ConfigError, match="no block references"):
        replay_prefill(Trace("x", "mooncake", (), 512))
    with pytest.raises(ConfigError, match="request 1 has 1 block ids for 600 tokens"):
        replay_prefill(trace_of((0.0, 10, (1,)), (1.0, 600, (2,))))
    with pytest.raises(ConfigError, match="follows a later one"):
        replay_prefill(trace_of((5.0, 10, (1,)), (1.0, 10, (2,))))


# --- both pools ---


def test_both_pools_account_for_every_request(traces):  # L1
    prefill, decode = replay_pair(traces[0], speed=48, decode_instances=1, tbt_slo_s=0.014, cache_blocks=200)
    assert decode.rejected_on_arrival > 0 and decode.rejected_after_prefill > 0
    assert decode.admitted + decode.rejected_after_prefill == prefill.completed
    assert prefill.completed + prefill.rejected == prefill.submitted == 240
    assert 0 < decode.wasted_prefill_ns / 1e9 < math.fsum(prefill.busy_s)


def test_with_room_to_spare_the_decode_pool_changes_nothing(traces):
    prefill, decode = replay_pair(traces[0], speed=8, ttft_slo_s=1000.0, tbt_slo_s=10.0)
    assert prefill == replay_prefill(traces[0], speed=8, ttft_slo_s=1000.0)
    assert decode.admitted == 240


@pytest.mark.parametrize("knobs, field", [({"decode_instances": 0}, "decode_instances"), ({"tbt_slo_s": 0}, "tbt_slo_s")])
def test_bad_decode_knobs_are_refused(traces, knobs, field):
    with pytest.raises(ConfigError, match=field):
        replay_pair(traces[0], **knobs)


# --- sweeps ---


def test_a_sweep_is_its_single_runs_in_order_however_many_jobs():
    draw, seen = partial(conversation_like, 60), []
    arguments = (draw, (3, 4), ("random", "cache_aware"), (1.0, 2.0))
    points = sweep_prefill(*arguments, cache_blocks=100, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 8) for done in range(1, 9)]
    assert [(p.seed, p.policy, p.speed) for p in points[:3]] == [(3, "random", 1.0), (3, "random", 2.0), (3, "cache_aware", 1.0)]
    assert points[1].result == replay_prefill(draw(3), policy="random", speed=2.0, seed=3, cache_blocks=100)
    assert sweep_prefill(*arguments, cache_blocks=100, jobs=2) == points


def test_bad_sweeps_are_refused():
    for jobs in (0, -1, 1.5, "2"):
        with pytest.raises(ConfigError, match="jobs"):
            sweep_prefill(partial(conversation_like, 10), (0,), ("random",), jobs=jobs)
    with pytest.raises(ConfigError, match="values"):
        Spread.of([])


# --- determinism ---


def test_same_seed_same_result_whatever_the_hash_seed():
    program = (
        "from kvlib.cluster import POLICIES, replay_prefill\n"
        "from kvlib.workloads import conversation_like\n"
        "t = conversation_like(150, seed=3)\n"
        "print([replay_prefill(t, policy=p, speed=2.0) for p in POLICIES])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 1000


def test_a_cluster_can_be_built_by_hand(traces):
    setup = PrefillSetup(cache_blocks=200)
    cluster = PrefillCluster(*setup.parts(traces[0]))
    assert cluster.submit(0, traces[0].requests[0]).instance == 0
    assert get_link(setup.link).bytes_per_s == 100e9


def test_a_mooncake_file_goes_straight_in(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n' * 2)
    assert replay_prefill(read_trace(path), instances=1).hit_ratio == 0.5
