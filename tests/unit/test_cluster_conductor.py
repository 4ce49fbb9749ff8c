"""Conductor's rules: what each chooses, how it breaks ties, and what it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cluster import POLICIES, Candidate, Conductor, wants_pull
from kvlib.cluster.conductor import check_threshold
from kvlib.errors import ConfigError

QUICK = settings(derandomize=True, deadline=None, max_examples=80)
S = 10**9
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        queue_ns=st.integers(0, 5), assigned_ns=st.integers(0, 5), prefix_blocks=st.integers(0, 5),
        local_prefill_ns=st.integers(1, 9), pulled_blocks=st.integers(0, 3), transfer_ns=st.integers(0, 5),
        pulled_prefill_ns=st.integers(1, 9),
    ),
    min_size=1, max_size=6,
)


def lecture_example(pull_ns):
    """Lecture 9, exercise 5: 20 blocks of 0.1 s; A holds 4 and has 0.5 s queued, B holds 18 and 3 s."""
    a = Candidate(
        S // 2, 0, 4, local_prefill_ns=16 * S // 10, pulled_blocks=14, transfer_ns=14 * pull_ns,
        pulled_prefill_ns=2 * S // 10,
    )
    return a, Candidate(3 * S, 0, 18, local_prefill_ns=2 * S // 10)


def test_the_lectures_three_choices():
    a, b = lecture_example(pull_ns=2 * 10**6)
    assert (a.local_ttft_ns, a.ttft_ns, b.ttft_ns) == (2_100_000_000, 728_000_000, 3_200_000_000)
    chosen = {policy: Conductor(policy).choose([a, b]) for policy in POLICIES if "random" not in policy}
    assert chosen == {
        "round_robin": 0, "least_load": 0, "longest_prefix": 1, "cache_aware": 0, "kvcache_centric": 0,
    }


def test_a_congested_pull_is_worse_than_computing():
    # The lecture: at 0.15 s per block, 0.5 + 2.1 + 0.2 = 2.8 s against 2.1 s without the pull.
    a, _ = lecture_example(pull_ns=150 * 10**6)
    assert a.ttft_ns == 2_800_000_000 > a.local_ttft_ns


@QUICK
@given(candidates=CANDIDATES)
def test_each_rule_takes_the_smallest_of_what_it_looks_at(candidates):
    looks_at = {
        "least_load": lambda c: c.queue_ns,
        "cache_aware": lambda c: c.queue_ns + c.local_prefill_ns,
        "kvcache_centric": lambda c: c.ttft_ns,
        "longest_prefix": lambda c: -c.prefix_blocks,
    }
    for policy, key in looks_at.items():
        chosen = Conductor(policy).choose(candidates)
        best = min(map(key, candidates))
        assert key(candidates[chosen]) == best
        equal = [i for i, c in enumerate(candidates) if key(c) == best]
        if policy == "longest_prefix":
            assert chosen == equal[0]
        else:
            assert chosen == min(equal, key=lambda i: (candidates[i].assigned_ns, i))


@QUICK
@given(candidates=CANDIDATES, slo=st.integers(1, 20))
def test_a_request_is_refused_exactly_when_its_estimate_misses_the_slo(candidates, slo):
    chosen = Conductor("kvcache_centric").choose(candidates)
    refused = Conductor("kvcache_centric", ttft_slo_ns=slo).choose(candidates) is None
    assert refused == (candidates[chosen].ttft_ns > slo)


def test_round_robin_goes_round_and_random_follows_its_seed():
    three = [Candidate(0, 0, 0, 1)] * 3
    conductor = Conductor("round_robin")
    assert [conductor.choose(three) for _ in range(5)] == [0, 1, 2, 0, 1]
    drawn = [[Conductor("random", seed=seed).choose([three[0]] * 1000) for _ in range(2)] for seed in (1, 2)]
    assert drawn[0][0] == drawn[0][1] != drawn[1][0]


@QUICK
@given(best=st.integers(0, 50), local=st.integers(0, 50), threshold=st.floats(1, 40))
def test_a_pull_needs_more_elsewhere_and_enough_of_it(best, local, threshold):
    pulls = wants_pull(best, local, threshold)
    if local == 0:
        assert pulls == (best > 0)  # the stated meaning of a division by zero
    else:
        assert pulls == (best > local and best >= threshold * local)


def test_every_rule_says_what_it_does():
    assert all(len(rule.words) > 20 for rule in POLICIES.values())
    assert [name for name, rule in POLICIES.items() if rule.pulls] == ["random_pull", "kvcache_centric"]


@pytest.mark.parametrize("bad", ["Random", "", None, 3])
def test_an_unknown_policy_lists_the_known_ones(bad):
    with pytest.raises(ConfigError, match="policy: .*kvcache_centric.*round_robin"):
        Conductor(bad)


@pytest.mark.parametrize("bad", [0, 0.99, -1, float("nan"), float("inf"), "2", True])
def test_a_threshold_below_one_is_refused(bad):
    with pytest.raises(ConfigError, match="threshold"):
        check_threshold(bad)


def test_no_instances_is_an_error():
    with pytest.raises(ConfigError, match="candidates"):
        Conductor("random").choose([])
