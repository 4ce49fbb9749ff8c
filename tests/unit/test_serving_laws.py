"""Laws of every run: L1 conservation, L2 blocks, L5 causality and progress, L6 no oracle, five kinds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.serving import Engine, Scheduler, StepClock, simulate
from kvlib.serving.simulation import MEMORIES
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request, sharegpt_like

CLOCK = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"))
MAX_LEN = 64

workloads = st.lists(
    st.tuples(st.integers(0, 400_000), st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=15
).map(
    lambda rows: [
        Request(sum(gap for gap, _, _ in rows[: row + 1]) / 1e6, inputs, outputs)
        for row, (_, inputs, outputs) in enumerate(rows)
    ]
)


@pytest.mark.parametrize("name", MEMORIES)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(requests=workloads, num_slots=st.integers(8, 200), block_size=st.integers(1, 8))
def test_laws_of_a_run(name, requests, num_slots, block_size):
    scheduler = Scheduler(MEMORIES[name](num_slots, block_size, MAX_LEN))
    result = Engine(scheduler, CLOCK, MAX_LEN).run(requests)

    # L1: everyone is accounted for, and nobody is in flight at the end.
    assert result.completed + result.rejected == result.submitted == len(requests)
    assert not scheduler.running and not scheduler.waiting
    served = [outcome for outcome in result.per_request if not outcome.rejection]
    assert len(served) == result.completed

    # L2: all memory is given back.
    scheduler.memory.check_integrity()
    assert scheduler.memory.held_slots == 0

    # L5, every run ends: each step gives at least the oldest request a token, and none is ever lost.
    assert result.num_steps <= sum(max(1, outcome.num_output_tokens) for outcome in served)

    # L5, causality: an admission after the arrival, the first token after that, the end last.
    started = {index: stretch.start_s for stretch in reversed(result.timeline) for index in stretch.admitted}
    for outcome in served:
        assert outcome.arrival_s <= started[outcome.index] < outcome.finish_s
        if outcome.num_output_tokens:
            assert started[outcome.index] < outcome.first_token_s <= outcome.finish_s

    # L5, progress: who runs arrived before who is preempted, and stretches follow one another.
    running, clock_s = set(), 0.0
    for stretch in result.timeline:
        assert clock_s <= stretch.start_s < stretch.end_s
        clock_s = stretch.end_s
        running -= set(stretch.preempted)
        assert all(max(running) < index for index in stretch.preempted) and (running or not stretch.preempted)
        running |= set(stretch.admitted)
        assert len(running) == stretch.num_running
        running -= set(stretch.finished)

    # The five kinds are never negative and add up to the memory, at every instant and on average.
    for stretch in result.timeline:
        slots = stretch.slots
        kinds = (slots.used, slots.reserved, slots.internal, slots.external, slots.free)
        assert min(kinds) >= 0 and sum(kinds) == num_slots
    if result.timeline:
        assert math.fsum(result.utilisation_by_kind.values()) == pytest.approx(1, abs=1e-12)
        assert result.utilisation == result.utilisation_by_kind["used"]

    # Little's law for the batch: running requests over time = the time that each spent running.
    in_batch = math.fsum(
        (stretch.end_s - stretch.start_s) * stretch.num_running for stretch in result.timeline
    )
    assert result.mean_running * result.duration_s == pytest.approx(in_batch)


@pytest.mark.parametrize("name", ["paged", "max"])
@settings(derandomize=True, deadline=None, max_examples=40)
@given(requests=workloads, more=st.integers(1, 20))
def test_L6_the_future_changes_nothing_before_it_happens(name, requests, more):
    """Longer outputs leave everything as it was until the first request ends that would have ended sooner."""
    requests = [Request(r.arrival_s, r.num_input_tokens, max(1, r.num_output_tokens)) for r in requests]
    longer = [Request(r.arrival_s, r.num_input_tokens, r.num_output_tokens + more) for r in requests]

    def decisions(workload):
        result = Engine(Scheduler(MEMORIES[name](192, 4, 100)), CLOCK, 100).run(workload)
        first_end_s = min(outcome.finish_s for outcome in result.per_request if outcome.finish_s is not None)
        return first_end_s, [
            (stretch.start_s, stretch.preempted, stretch.admitted)
            for stretch in result.timeline
            if stretch.preempted or stretch.admitted
        ]

    first_end_s, as_it_was = decisions(requests)
    _, with_more = decisions(longer)
    assert [row for row in as_it_was if row[0] < first_end_s] == [
        row for row in with_more if row[0] < first_end_s
    ]


def test_same_workload_same_result():
    first, second = (simulate(sharegpt_like(60, rate=6.0, seed=3), num_slots=2500) for _ in range(2))
    assert first == second and first.preemptions > 0


@pytest.mark.parametrize("name", MEMORIES)
def test_a_run_without_rows_has_the_same_totals(name):
    requests = sharegpt_like(60, rate=6.0, seed=3)
    full, lean = (
        simulate(iter(requests), memory=name, num_slots=4096, record=record) for record in (True, False)
    )
    assert (lean.per_request, lean.timeline) == ((), ())
    for field in (
        "completed",
        "preemptions",
        "duration_s",
        "ttft_s",
        "tbt_s",
        "normalized_latency_s",
        "utilisation_by_kind",
    ):
        assert getattr(full, field) == getattr(lean, field), field


def test_means_agree_with_the_rows():
    result = simulate(sharegpt_like(80, rate=6.0, seed=5), num_slots=4096)
    rows = result.per_request

    def mean(values):
        values = list(values)
        return math.fsum(values) / len(values)

    assert result.ttft_s == pytest.approx(mean(row.ttft_s for row in rows))
    assert result.normalized_latency_s == pytest.approx(mean(row.normalized_latency_s for row in rows))
    gaps = [
        (row.tbt_s * (row.num_output_tokens - 1), row.num_output_tokens - 1)
        for row in rows
        if row.tbt_s is not None
    ]
    assert result.tbt_s == pytest.approx(
        math.fsum(time for time, _ in gaps) / sum(count for _, count in gaps)
    )
    assert result.preemptions == sum(row.num_preemptions for row in rows) > 0
