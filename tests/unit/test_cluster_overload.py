"""Overload: conservation, Little's law, no oracle, and what early rejection does over five seeds."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cluster import Controller, Demand, Expected, Pools, draw_demands, run_overload, slots_taken
from kvlib.cluster.admission import POLICIES
from kvlib.cluster.overload_results import correlation, covariance
from kvlib.errors import ConfigError

US = 10**6
SEEDS = range(5)
HONEST = ("baseline", "early", "predicted")

times = st.integers(1, 30 * US)
workloads = st.lists(
    st.tuples(st.integers(0, 5 * US), times, st.one_of(st.just(0), times)), min_size=1, max_size=40,
)
pools_drawn = st.builds(Pools, st.integers(1, 4), st.integers(1, 5), st.sampled_from([5.0, 60.0, 1e6]))
controllers = st.fixed_dictionaries({
    "policy": st.sampled_from(sorted(POLICIES)),
    "headroom": st.sampled_from([-0.5, 0.0, 0.5]),
    "gain": st.sampled_from([None, 0.5, 4.0]),
    "prediction_error": st.sampled_from([0.0, 1.0]),
})


def demands_from(rows):
    now, demands = 0, []
    for gap, prefill, decode in rows:
        now += gap
        demands.append(Demand(now, prefill, decode))
    return demands


def after_the_end(demands):
    """The same requests and one much later, so that everything is done when the run ends."""
    return [*demands, Demand(demands[-1].arrival_us + 2 * 10**9, 1, 0)]


# Laws

@settings(derandomize=True, deadline=None, max_examples=40)
@given(workloads, pools_drawn, controllers)
def test_l1_every_request_is_completed_refused_or_in_flight(rows, pools, knobs):
    demands = demands_from(rows)
    run = run_overload(demands, pools, **knobs)
    assert run.completed + run.rejected + run.in_flight == run.submitted == len(demands)
    drained = run_overload(after_the_end(demands), pools, **knobs)
    # The last request has only just arrived.
    assert drained.in_flight <= 1 and drained.decoding == 0


@settings(derandomize=True, deadline=None, max_examples=40)
@given(workloads, pools_drawn, controllers)
def test_utilization_stays_within_the_pools(rows, pools, knobs):
    run = run_overload(after_the_end(demands_from(rows)), pools, **knobs)
    assert 0 <= run.occupied_us <= pools.decode_slots * run.duration_us
    assert run.wasted_prefill_us <= run.prefill_us <= pools.prefill_instances * run.duration_us
    assert all(0 <= s.decode_load <= 1 and s.prefill_load >= 0 for s in run.samples)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(workloads, st.sampled_from(sorted(POLICIES)))
def test_littles_law_is_exact_where_everybody_gets_in(rows, policy):
    demands = demands_from(rows)
    run = run_overload(after_the_end(demands), Pools(2, len(demands), 1e9), policy=policy)
    # N = X · R times the duration: both sides are the sum of the decode times.
    assert run.occupied_us == sum(d.decode_us for d in demands)
    assert run.rejected == 0 and run.prefill_us == sum(d.prefill_us for d in demands)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(workloads, st.sampled_from(HONEST), st.integers(0, 39), times)
def test_l6_decode_times_that_have_not_shown_change_nothing(rows, policy, which, other_us):
    """Without the oracle, another decode time is invisible until the earlier of the two ends."""
    demands = demands_from(rows)
    which %= len(demands)
    if not demands[which].decode_us:
        return
    changed = list(demands)
    changed[which] = replace(demands[which], decode_us=other_us)
    shows_us = demands[which].arrival_us + demands[which].prefill_us + min(demands[which].decode_us, other_us)
    seen = [d for d in demands if d.arrival_us < shows_us]
    if seen:
        same = changed[: len(seen)]
        assert run_overload(seen, Pools(2, 2), policy=policy) == run_overload(
            same, Pools(2, 2), policy=policy,
        )


@settings(derandomize=True, deadline=None, max_examples=40)
@given(workloads, times)
def test_the_oracle_wastes_nothing_when_nobody_overtakes(rows, prefill_us):
    """With equal prefills, ends come in order of arrival, so the oracle's forecast is exact."""
    demands = [replace(d, prefill_us=prefill_us) for d in demands_from(rows)]
    assert run_overload(demands, Pools(3, 2, 1e9), policy="oracle").rejected_after_prefill == 0


@settings(derandomize=True, deadline=None, max_examples=40)
@given(workloads)
def test_rules_agree_where_they_must(rows):
    demands = demands_from(rows)
    oracle = run_overload(demands, policy="oracle")
    assert run_overload(demands, policy="per_request", prediction_error=0.0) == oracle
    equal = [replace(d, decode_us=20 * US) for d in demands]
    assert run_overload(equal, policy="predicted", assumed_decode_s=20.0) == run_overload(
        equal, policy="oracle",
    )
    # Room for everybody at the limit: nothing is refused for the decode pool, as in the baseline.
    assert run_overload(demands, policy="early", headroom=1000.0) == run_overload(demands)


def test_same_seed_same_run():
    knobs = {"policy": "per_request", "prediction_error": 0.6, "gain": 1.0}
    demands = draw_demands(200, rate_per_s=1.2, seed=3)
    assert run_overload(demands, seed=7, **knobs) == run_overload(demands, seed=7, **knobs)
    assert run_overload(demands, seed=7, **knobs) != run_overload(demands, seed=8, **knobs)


# By hand

def test_system_level_prediction_by_hand():
    # Pedagogy, chapter 12, exercise 1: 82 + 20 = 102 is over by 110, 85 + 20 = 105 too; 92, 103 and 108 remain.
    assert slots_taken(110, [Expected(s, 20) for s in (82, 85, 92, 103, 108)]) == 3
    assert slots_taken(110, [Expected(90, 20)]) == 0, "a decode that ends at that instant has left"
    assert slots_taken(110, [Expected(110, 20)]) == 1


def test_a_small_log_by_hand():
    """One instance, one slot, four requests at 0, 0, 0 and 30 s; prefills 2, 3, 4, 1; decodes 4, 10, 10, 10."""
    demands = [Demand(t * US, p * US, d * US) for t, p, d in ((0, 2, 4), (0, 3, 10), (0, 4, 10), (30, 1, 10))]
    base = run_overload(demands, Pools(1, 1, 100.0))
    # Prefills end at 2, 5, 9. The first decodes from 2 to 6, so the second is refused at 5; the third decodes 9 to 19.
    assert (base.completed, base.rejected_after_prefill, base.in_flight) == (2, 1, 1)
    assert (base.prefill_us, base.wasted_prefill_us, base.occupied_us) == (9 * US, 3 * US, 14 * US)
    # All three come while the slot is free: early rejection refuses none of them.
    assert run_overload(demands, Pools(1, 1, 100.0), policy="early") == base
    # System prediction, 4 s each: at 5 the first still decodes until 6 (refuse); then ours ends at 6, not 9, and it has left.
    told = run_overload(demands, Pools(1, 1, 100.0), policy="predicted", assumed_decode_s=4.0)
    assert (told.completed, told.rejected_for_decode, told.rejected_after_prefill) == (2, 1, 0)
    assert told.wasted_prefill_us == 0


def test_first_token_too_late_is_refused_under_every_rule():
    demands = [Demand(0, 6 * US, US), Demand(0, 7 * US, US), Demand(0, 6 * US, US)]
    for policy in POLICIES:
        # 6 + 7 > 12, 6 + 6 is just in time.
        run = run_overload(demands, Pools(1, 5, 12.0), policy=policy)
        assert run.rejected_for_ttft == 1


def test_one_token_never_needs_a_slot():
    demands = [Demand(0, US, 100 * US), Demand(0, US, 0), Demand(0, US, 0), Demand(50 * US, US, 0)]
    for policy in POLICIES:
        run = run_overload(demands, Pools(1, 1, 100.0), policy=policy)
        assert run.completed == 2 and run.rejected == 0, policy
    # Nor does any rule count it as a decode: the second request finds the only slot free.
    pair = [Demand(0, 2 * US, 0), Demand(0, US, 5 * US), Demand(20 * US, US, 0)]
    for policy in POLICIES:
        assert run_overload(pair, Pools(1, 1, 100.0), policy=policy).completed == 2, policy


def test_gain_by_hand():
    # 0.5 + gain * (limit - load) / slots with limit 12 * 1.5 = 18: 0.5 + 2 * (18 - 15) / 12 = 1.0, and 0.5 - 2 * 3 / 12 = 0.
    controller = Controller("predicted", headroom=0.5, gain=2.0)
    assert [controller.admit_probability(load, 12) for load in (15, 18, 21)] == [1.0, 0.5, 0.0]
    assert Controller("baseline", headroom=-0.5, gain=0.5).admit_probability(100, 12) == 1.0


def test_correlation_by_hand():
    assert covariance([1, 3], [2, 6]) == 2.0  # deviations ±1 and ±2
    assert correlation([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx(1.0, abs=1e-12)
    assert correlation([], []) is None and correlation([1, 2], [5, 5]) is None
    with pytest.raises(ConfigError, match="2 and 1 values"):
        covariance([1, 2], [1])


def test_drawn_times_have_the_means_and_shapes_asked_for():
    drawn = draw_demands(4000, rate_per_s=2.0, prefill_s=3.0, decode_s=10.0, first_token_share=0.25, seed=1)
    decodes = [d.decode_us for d in drawn if d.decode_us]
    # Standard errors: 3 * 0.53 / sqrt(4000) = 0.025 s, 10 / sqrt(3000) = 0.18 s, 0.0068 of the share; four of each.
    assert math.fsum(d.prefill_us for d in drawn) / 4000 / US == pytest.approx(3.0, abs=0.1)
    assert math.fsum(decodes) / len(decodes) / US == pytest.approx(10.0, abs=0.73)
    assert 1 - len(decodes) / 4000 == pytest.approx(0.25, abs=0.028)
    assert drawn[-1].arrival_us / US == pytest.approx(2000, abs=4 * math.sqrt(4000) / 2)
    equal = draw_demands(5, rate_per_s=1.0, prefill_s=2.0, prefill_spread="equal", decode_spread="equal")
    assert {(d.prefill_us, d.decode_us) for d in equal} == {(2 * US, 20 * US)}


# What the lectures say, over five seeds: signs only (L7.earlyrej, L9.early, "accept: sign only")

def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def runs(policy, pools=Pools(), prefill_s=4.0, rate_per_s=1.2, **workload):
    drawn = [draw_demands(400, rate_per_s=rate_per_s, prefill_s=prefill_s, seed=s, **workload) for s in SEEDS]
    return [run_overload(d, pools, policy=policy) for d in drawn]


def test_l7_earlyrej_less_waste_opposite_phase_completions_about_equal():
    base, early, predicted = (runs(policy) for policy in HONEST)
    waste = [mean(r.wasted_prefill_us for r in group) for group in (base, early, predicted)]
    assert waste[1] < waste[2] < waste[0]  # early spares more than prediction: L7 -70 % and -33 %
    assert mean(r.correlation for r in early) < -0.1 < mean(r.correlation for r in base)
    # "Almost the same": within 10 %; L9.early reports 3 to 7 % fewer.
    assert mean(r.completed for r in early) == pytest.approx(mean(r.completed for r in base), rel=0.1)


def test_l9_a_longer_prefill_widens_the_swing():
    """Equal decodes, 32 slots, twice the load; the prefill pool grows with the prefill, so only the delay changes."""
    swings = []
    for prefill_s in (0.5, 4.0):
        pools = Pools(math.ceil(3.2 * prefill_s), 32, 5 * prefill_s + 5)
        swings.append([r.decode_swing for r in runs("early", pools, prefill_s, 3.2, decode_spread="equal")])
    assert min(swings[1]) > max(swings[0])


def test_equal_decodes_make_system_prediction_as_good_as_the_oracle_and_a_long_tail_does_not():
    equal = [runs(policy, decode_spread="equal") for policy in ("predicted", "oracle")]
    assert equal[0] == equal[1]
    tail = [mean(r.wasted_prefill_us for r in runs(policy)) for policy in ("predicted", "oracle")]
    assert tail[0] > 1.5 * tail[1]


def test_completions_rise_when_prefill_is_scarce_for_others_too():
    """Lecture 7, exercise 11: wasted prefill must keep somebody out. 30 % want one token, so they need prefill only."""
    gains = {}
    for instances in (4, 12):
        base, early = (runs(p, Pools(instances, 6), rate_per_s=2.4, first_token_share=0.3) for p in ("baseline", "early"))
        gains[instances] = [e.completed - b.completed for e, b in zip(early, base)]
    assert min(gains[4]) > 0  # in all five seeds
    assert min(gains[12]) < 0 < max(gains[12])  # with ample prefill the sign depends on the seed


# Bad input

@pytest.mark.parametrize(("make", "words"), [
    (lambda: Pools(prefill_instances=0), "prefill_instances: got 0"),
    (lambda: Pools(decode_slots=True), "decode_slots: got True"),
    (lambda: Pools(ttft_slo_s=0), "ttft_slo_s: got 0"),
    (lambda: Pools(ttft_slo_s=math.nan), "ttft_slo_s: got nan"),
    (lambda: Controller("late"), "policy: got 'late'"),
    (lambda: Controller(prediction_error=1.5), "prediction_error: got 1.5"),
    (lambda: Controller(headroom=-1.0), "headroom: got -1.0"),
    (lambda: Controller(gain=0.0), "gain: got 0.0"),
    (lambda: Controller(assumed_decode_s=0), "assumed_decode_s: got 0"),
    (lambda: run_overload([], polcy="early"), "polcy='early'"),
    (lambda: run_overload([Demand(5, 1, 1), Demand(4, 1, 1)]), "arrival_us: got 4 after 5"),
    (lambda: draw_demands(0, rate_per_s=1.0), "n: got 0"),
    (lambda: draw_demands(1, rate_per_s=0.0), "rate"),
    (lambda: draw_demands(1, rate_per_s=1.0, decode_spread="wide"), "decode_spread: got 'wide'"),
    (lambda: draw_demands(1, rate_per_s=1.0, first_token_share=1.1), "first_token_share: got 1.1"),
    (lambda: draw_demands(1, rate_per_s=1.0, prefill_s=-1), "prefill_s: got -1"),
])
def test_bad_input_is_named(make, words):
    with pytest.raises(ConfigError) as refusal:
        make()
    assert words in str(refusal.value)


def test_nobody_arrives():
    run = run_overload([])
    assert (run.submitted, run.completed, run.correlation, run.decode_swing) == (0, 0, None, 0.0)
