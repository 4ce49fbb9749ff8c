"""Laws of every run: L1 conservation, L2 blocks, L5 causality and progress, L6 no oracle, five kinds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.serving import Engine, Knobs, StepClock, request_spans, simulate, single_steps
from kvlib.serving.simulation import MEMORIES, make_scheduler
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


MODES = {
    **{name: (name, {}) for name in MEMORIES},
    "paged, watermark": ("paged", {"watermark": 0.2}),
    "paged, swapping": ("paged", {"cpu_slots": 40}),
    "paged, prefix caching": ("paged", {"prefix_caching": 4}),
    "paged, chunked": ("paged", {"chunked_prefill": True, "max_num_batched_tokens": 9, "cpu_slots": 16}),
}


@pytest.mark.parametrize("mode", MODES)
@settings(derandomize=True, deadline=None, max_examples=50)
@given(requests=workloads, num_slots=st.integers(8, 200), block_size=st.integers(1, 8))
def test_laws_of_a_run(mode, requests, num_slots, block_size):
    name, knobs = MODES[mode]
    scheduler = make_scheduler(name, num_slots, block_size, Knobs(max_len=MAX_LEN, **knobs))
    result = Engine(scheduler, CLOCK, MAX_LEN).run(requests)

    # L1: everyone is accounted for, and nobody is in flight at the end.
    assert not result.deadlocked and result.in_flight == 0
    assert result.completed + result.rejected == result.submitted == len(requests)
    assert not scheduler.running and not scheduler.waiting
    served = [outcome for outcome in result.per_request if not outcome.rejection]
    assert len(served) == result.completed

    # L2: all memory is given back.
    scheduler.memory.check_integrity()
    assert scheduler.memory.held_slots == 0

    # L5, every run ends: each step gives at least the oldest request a token or a chunk, and none is lost.
    if "chunked" not in mode:
        assert result.num_steps <= sum(max(1, outcome.num_output_tokens) for outcome in served)
    else:
        assert result.num_steps <= sum(
            outcome.num_input_tokens + outcome.num_output_tokens for outcome in served
        ) * (1 + result.preemptions)

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

    # The life of a request lies end to end from arrival to finish.
    spans = request_spans(result)
    for outcome in served:
        ends = [outcome.arrival_s, *(span.end_s for span in spans[outcome.index])]
        assert [span.start_s for span in spans[outcome.index]] == ends[:-1]
        assert ends[-1] == outcome.finish_s

    # Little's law for the batch: running requests over time = the time that each spent running.
    in_batch = math.fsum(
        (stretch.end_s - stretch.start_s) * stretch.num_running for stretch in result.timeline
    )
    assert result.mean_running * result.duration_s == pytest.approx(in_batch)


@pytest.mark.parametrize("name", ["paged", "max", "static"])
@settings(derandomize=True, deadline=None, max_examples=40)
@given(requests=workloads, more=st.integers(1, 20))
def test_L6_the_future_changes_nothing_before_it_happens(name, requests, more):
    """Longer outputs leave everything as it was until the first request ends that would have ended sooner."""
    requests = [Request(r.arrival_s, r.num_input_tokens, max(1, r.num_output_tokens)) for r in requests]
    longer = [Request(r.arrival_s, r.num_input_tokens, r.num_output_tokens + more) for r in requests]

    def decisions(workload):
        result = Engine(make_scheduler(name, 192, 4, Knobs(max_len=100)), CLOCK, 100).run(workload)
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
        "latency_s",
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
    assert result.latency_s == pytest.approx(mean(row.latency_s for row in rows))
    assert result.output_tokens == sum(row.num_output_tokens for row in rows)
    gaps = [
        (row.tbt_s * (row.num_output_tokens - 1), row.num_output_tokens - 1)
        for row in rows
        if row.tbt_s is not None
    ]
    assert result.tbt_s == pytest.approx(
        math.fsum(time for time, _ in gaps) / sum(count for _, count in gaps)
    )
    assert result.preemptions == sum(row.num_preemptions for row in rows) > 0


@settings(derandomize=True, deadline=None, max_examples=60)
@given(requests=workloads, num_slots=st.integers(8, 200), block_size=st.integers(1, 8))
def test_without_preemption_a_run_ends_too(requests, num_slots, block_size):
    """In a deadlock everyone who runs holds memory, lacks one block, and nothing is free."""
    scheduler = make_scheduler("paged", num_slots, block_size, Knobs(max_len=MAX_LEN, preemption=False))
    result = Engine(scheduler, CLOCK, MAX_LEN).run(requests)
    assert result.preemptions == 0
    assert result.completed + result.rejected + result.in_flight == result.submitted
    assert result.deadlocked == bool(scheduler.running) == bool(result.in_flight)
    if result.deadlocked:
        manager = scheduler.memory.manager
        assert manager.num_free == 0
        assert all(manager.blocks_to_append(job.index) == 1 for job in scheduler.running)
    else:
        assert result.submitted == len(requests)
    scheduler.memory.check_integrity()


@pytest.mark.parametrize("mode", sorted(set(MODES) - {"paged, prefix caching"}))
@settings(derandomize=True, deadline=None, max_examples=30)
@given(requests=workloads, num_slots=st.integers(40, 120))
def test_single_steps_hold_the_tokens_that_were_counted(mode, requests, num_slots):
    """Unfolding the timeline finds, at the end of each stretch, the slots that the engine counted as used."""
    name, knobs = MODES[mode]
    scheduler = make_scheduler(name, num_slots, 4, Knobs(max_len=MAX_LEN, **knobs))
    result = Engine(scheduler, CLOCK, MAX_LEN).run(requests)
    steps = list(single_steps(result))
    assert len(steps) == result.num_steps
    last = -1
    for stretch in result.timeline:
        last += stretch.num_steps
        assert sum(steps[last].tokens.values()) == stretch.slots.used
        stalled = {index for index, kind in steps[last].doing.items() if kind == "stalled"}
        assert stalled == set(stretch.stalled)
