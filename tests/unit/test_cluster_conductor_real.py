"""The real Mooncake conversation trace through eight instances of 3,000 blocks (issue 7, L7.conductor)."""

import math
import os
from pathlib import Path

import pytest

from kvlib.cluster import replay_prefill
from kvlib.figures.mooncake import REAL_HIT_RATIOS
from kvlib.workloads import read_trace

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared")) / "data"


@pytest.fixture(scope="module")
def conversation():
    path = SHARED / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the Mooncake trace is not here")
    return read_trace(path)


@pytest.fixture(scope="module")
def results(conversation):
    policies = ("longest_prefix", "least_load", "cache_aware", "kvcache_centric")
    return {policy: replay_prefill(conversation, policy=policy) for policy in policies}


@pytest.fixture(scope="module")
def random_hit_ratio(conversation):
    return math.fsum(replay_prefill(conversation, policy="random", seed=s).hit_ratio for s in range(5)) / 5


def test_the_trap(results):
    """Every request shares block 0, so the longest prefix is always on the instance that saw the first one."""
    assert results["longest_prefix"].hit_ratio == pytest.approx(0.065, abs=0.005)
    assert results["longest_prefix"].imbalance == 8.0


def test_rules_that_do_not_look_at_caches(results, random_hit_ratio):
    assert results["least_load"].hit_ratio == pytest.approx(0.092, abs=0.01)
    assert random_hit_ratio == pytest.approx(0.085, abs=0.01)


def test_rules_that_do(results, random_hit_ratio):
    aware, centric = results["cache_aware"], results["kvcache_centric"]
    assert aware.hit_ratio >= 2.5 * random_hit_ratio
    assert centric.hit_ratio > aware.hit_ratio and centric.ttft_s < aware.ttft_s < results["least_load"].ttft_s
    assert centric.imbalance < 1.1 and centric.transferred_tokens > 0
    assert centric.rejected == 0 and centric.completed == 12_031


def test_the_page_quotes_these_figures(results, random_hit_ratio):
    measured = {policy: result.hit_ratio for policy, result in results.items()} | {"random": random_hit_ratio}
    assert {policy: round(hit, 3) for policy, hit in measured.items()} == REAL_HIT_RATIOS
