"""Requests answered by several sequences: parallel sampling and beam search in the serving engine."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.blocks import BlockManager
from kvlib.errors import ConfigError
from kvlib.figures.copy_on_write import beam_runs
from kvlib.serving import Engine, Groups, Knobs, PagedMemory, StepClock, simulate
from kvlib.serving.simulation import make_scheduler
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request, alpaca_like

CLOCK = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"))


def held_blocks(result, block_size=16):
    """Blocks held in the last step of each stretch."""
    return [
        (stretch.slots.used + stretch.slots.reserved + stretch.slots.internal) // block_size
        for stretch in result.timeline
    ]


def test_four_samples_share_the_prompt_of_100_tokens():
    """Pedagogy, chapter 4, exercise 1: 40 new tokens each take 18 blocks, and 36 without sharing.

    The last token of an answer is never written, so 41 tokens write 40.
    """
    together = simulate([Request(0.0, 100, 41, num_sequences=4)], num_slots=1024)
    apart = simulate([Request(0.0, 100, 41)] * 4, num_slots=1024)
    assert max(held_blocks(together)) == 18
    assert max(held_blocks(apart)) == 36


@pytest.mark.parametrize("prompt, copies", [(96, 0), (97, 3)])  # pedagogy, chapter 4: the misconception
def test_copies_at_the_first_token(prompt, copies):
    memory = PagedMemory(1024, 16)
    request = Request(0.0, prompt, 10, num_sequences=4)
    assert memory.admit("a", request, prompt).empty_slots == -(-prompt // 16) * 16
    before = memory.held_slots
    growth = memory.grow(["a"], 1)
    assert sum(number for _, number, _ in growth.copies) == copies
    # Four tails are needed. Of a partial last block three are copies; a full one is no tail.
    assert (memory.held_slots - before) // 16 == (3 if copies else 4)
    assert len(growth.taken) == (0 if copies else 4)


def test_a_decode_step_reads_the_prompt_once_for_each_sequence():
    result = simulate([Request(0.0, 100, 2, num_sequences=4)], num_slots=1024)
    first, second = result.timeline
    assert first.end_s - first.start_s == CLOCK.step_ps([(100, 0)]) / 1e12
    # Four new tokens, and each of the four sequences now has 101.
    assert second.end_s - second.start_s == pytest.approx(CLOCK.step_ps((), 4, 4 * 101) / 1e12, rel=1e-12)


def test_a_group_gives_way_and_comes_back_as_a_whole():
    """16 blocks of 4. Two groups of two, prompts of 10: the second loses both its answers and both return."""
    requests = [Request(0.0, 10, 22, num_sequences=2)] * 2
    dropped = simulate(requests, num_slots=64, block_size=4)
    assert dropped.completed == 2 and dropped.preemptions == 1
    [lost] = [row for row in dropped.timeline if row.preempted]
    [back] = [row for row in dropped.timeline if row.admitted == (1,) and row.start_s >= lost.start_s]
    [(index, new_tokens)] = back.prefilled
    answered = (new_tokens - 10) // 2  # each sequence: what it had written, and the token generated last
    assert index == 1 and new_tokens == 10 + 2 * answered
    assert dropped.recomputed_tokens == new_tokens - 2
    pieces = [(10, 0), (answered, 10), (answered, 10)]
    assert back.end_s - back.start_s == pytest.approx(CLOCK.step_ps(pieces) / 1e12, rel=1e-12)

    swapped = simulate(requests, num_slots=64, block_size=4, cpu_slots=64)
    assert swapped.completed == 2 and swapped.recomputed_tokens == 0
    assert swapped.swapped_tokens == dropped.recomputed_tokens


def test_what_a_group_shares_is_swapped_once_and_comes_back_into_just_enough_room():
    """A prompt of 8 in two blocks of 4, two answers of 3: four blocks, not six; one more token fits in them."""
    memory = PagedMemory(16, 4, cpu_slots=16)
    memory.admit("a", Request(0.0, 8, 9, num_sequences=2), 8)
    assert memory.grow(["a"], 3).steps == 3 and memory.held_slots == 16
    assert memory.swap_out("a") == 16 and memory.held_slots == 0
    assert memory.swap_in("a").empty_slots == 0 and memory.held_slots == 16
    assert memory.grow(["a"], 1).steps == 0  # the next one does not
    memory.check_integrity()


def test_an_unparted_group_is_swapped_with_one_last_block():
    """A prompt of 6 in two blocks; coming back with one more token each, one of the two copies the second."""
    memory = PagedMemory(12, 4, cpu_slots=8)
    memory.admit("a", Request(0.0, 6, 9, num_sequences=2), 6)
    assert memory.swap_out("a") == 8
    room = memory.swap_in("a")
    assert memory.held_slots == 12 and room == (2, 2)
    memory.check_integrity()


def test_beams_hold_less_than_samples_and_more_than_one_sequence():
    """Beams share what their ancestors wrote; samples share the prompt only (figure 15 of the paper)."""
    base = alpaca_like(60, rate=3.0, seed=0)
    used = {
        name: simulate([replace(one, **kind) for one in base]).utilisation
        for name, kind in {
            "one": {},
            "samples": {"num_sequences": 4},
            "beams": {"num_sequences": 4, "beam_search": True},
        }.items()
    }
    assert used["one"] < used["beams"] < used["samples"] < 4 * used["one"]


def test_the_share_of_beams_that_go_on_is_that_of_random_parents():
    """Of w beams, each drawing a parent among w, 1 - (1 - 1/w)^w are drawn: 75, 68 and 67 % for 2, 4 and 6."""
    for width, expected in ((2, 0.75), (4, 0.684), (6, 0.665)):
        manager = BlockManager(num_blocks=1000, block_size=1)
        manager.allocate(0, 3)
        groups = Groups(manager)
        groups.fork(0, width, is_beam=True)
        going_on = steps = 0
        for steps in range(1, 401):
            manager.append_each(groups.members(0))
            groups.part(0)
            groups.select(0)
            going_on += len({manager.block_table(member)[-1] for member in groups.members(0)})
        manager.check_integrity()
        assert going_on / (steps * width) == pytest.approx(expected, abs=0.02)


def test_a_real_beam_search_loses_about_as_many_beams():
    """Chapter 4's search on SmolLM2, which justifies drawing parents at random: 84, 70 and 71 %."""
    for run, stated in zip(beam_runs()["runs"], (0.84, 0.70, 0.71)):
        width, parents = run["width"], run["parents"]
        share = sum(len(set(step)) for step in parents) / (width * len(parents))
        assert share == pytest.approx(stated, abs=0.005)
        assert share == pytest.approx(1 - (1 - 1 / width) ** width, abs=0.1)


def test_the_same_prompt_sent_as_often_is_slower():
    base = alpaca_like(150, rate=14.0, seed=0)
    group = simulate([replace(one, num_sequences=4) for one in base])
    apart = simulate([one for one in base for _ in range(4)])
    assert group.output_tokens == apart.output_tokens
    assert group.normalized_latency_s < apart.normalized_latency_s


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 300_000), st.integers(1, 20), st.integers(0, 20), st.integers(1, 4), st.booleans()
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 6),
    st.integers(20, 160),
    st.sampled_from([0, 60]),
)
def test_laws_of_a_run_with_groups(rows, block_size, num_slots, cpu_slots):
    arrival_us, requests = 0, []
    for gap_us, inputs, outputs, size, is_beam in rows:
        arrival_us += gap_us
        requests.append(Request(arrival_us / 1e6, inputs, outputs, num_sequences=size, beam_search=is_beam))
    knobs = Knobs(max_len=64, cpu_slots=cpu_slots)
    scheduler = make_scheduler("paged", num_slots, block_size, knobs)
    result = Engine(scheduler, CLOCK, 64).run(requests)

    assert not result.deadlocked and result.completed + result.rejected == len(requests)  # L1
    scheduler.memory.check_integrity()  # L2, L3
    assert scheduler.memory.held_slots == 0 and not scheduler.memory.groups
    served = [one for one in result.per_request if not one.rejection]
    assert result.output_tokens == sum(one.num_sequences * one.num_output_tokens for one in served)
    assert result.num_steps <= sum(max(1, one.num_output_tokens) for one in served)  # L5: the oldest moves
    running = set()
    for stretch in result.timeline:  # L5: who gives way is the latest arrival
        running -= set(stretch.preempted)
        assert all(max(running) < index for index in stretch.preempted)
        running = (running | set(stretch.admitted)) - set(stretch.finished)
        slots = stretch.slots
        kinds = (slots.used, slots.reserved, slots.internal, slots.external, slots.free)
        assert min(kinds) >= 0 and sum(kinds) == num_slots


def test_a_group_larger_than_the_limits_is_rejected_on_arrival():
    [row] = simulate([Request(0.0, 8, 8, num_sequences=4)], max_num_seqs=3).per_request
    assert row.rejection == "its 4 sequences never fit in one step"
    # Alone, prompt and answers need 2 + 4 x 2 blocks of 4.
    request = Request(0.0, 8, 9, num_sequences=4)
    assert simulate([request], num_slots=40, block_size=4).completed == 1
    assert simulate([request], num_slots=39, block_size=4).rejected == 1


def test_a_group_that_could_not_come_back_is_rejected_on_arrival():
    """16 + 4 x 42 tokens would have to be prefilled in one step after a preemption at the very end."""
    requests = [Request(0.0, 1, 43), Request(0.0, 16, 43, num_sequences=4)]
    knobs = {"num_slots": 237, "block_size": 3, "max_len": 128}
    run = simulate(requests, max_num_batched_tokens=151, **knobs)
    assert not run.deadlocked and (run.completed, run.rejected) == (1, 1)
    assert simulate(requests, max_num_batched_tokens=184, **knobs).completed == 2


@pytest.mark.parametrize("knobs", [{"max_num_batched_tokens": 9, "chunked_prefill": True}, {"max_num_batched_tokens": 161}])
def test_no_step_has_more_tokens_than_allowed(knobs):
    run = simulate([Request(0.0, 1, 20, num_sequences=8)] * 30, max_len=32, **knobs)
    assert run.completed == 30
    assert max(8 * stretch.num_running for stretch in run.timeline) <= knobs["max_num_batched_tokens"]


@pytest.mark.parametrize("memory", ["max", "pow2", "oracle", "static"])
def test_reserved_memory_cannot_share_a_prompt(memory):
    with pytest.raises(ConfigError, match=r"requests\[1\].num_sequences: got 2, expected 1 in reserved memory"):
        simulate([Request(0.0, 8, 8), Request(0.0, 8, 8, num_sequences=2)], memory=memory)


@pytest.mark.parametrize(
    "field, value", [("num_sequences", 0), ("num_sequences", 2.0), ("num_sequences", True), ("beam_search", 1)]
)
def test_bad_groups_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        Request(0.0, 8, 8, **{field: value})
