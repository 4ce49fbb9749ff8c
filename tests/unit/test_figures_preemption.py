"""Chapter 5: what its explorers and exercises must say, with where each number comes from."""

from __future__ import annotations

import pytest
from shown import asked, numbers, view

from kvlib.explore import EXERCISES
from kvlib.figures.data.make_preemption import MEMORY_PERCENT, RATES, WATERMARKS, point
from kvlib.figures.preemption import TOY, toy_run
from kvlib.figures.preemption_drawings import lanes
from kvlib.figures.preemption_pressure import PERCENTS, precomputed, runs


class TestDeadlock:
    def test_without_preemption_all_five_stop_and_with_it_all_finish(self):
        """Pedagogy, chapter 5, aha figure; coverage SERVE-5."""
        stuck = numbers("preemption.deadlock")
        assert stuck["stuck"] == 5 and stuck["steps_without"] < stuck["steps_with"]
        assert "for ever" in asked("preemption.deadlock").text

    def test_the_oldest_row_never_stops(self):
        for blocks in (12, 16, 22):
            _, steps = toy_run(blocks)
            oldest, *_ = lanes(steps, len(TOY))
            assert [kind for kind, _, _ in oldest] == ["prefill", "decode"]
            assert oldest[-1][2] == TOY[0].num_output_tokens

    def test_ample_memory_never_asks_the_rule(self):
        ample = view("preemption.deadlock", blocks=28)
        assert ample.numbers["preemptions"] == ample.numbers["stuck"] == 0 and "ample" in ample.title


class TestTimeline:
    @pytest.mark.parametrize("recovery", ["drop and recompute", "swap to the host"])
    @pytest.mark.parametrize("blocks", [16, 18, 20, 24])
    def test_every_token_is_counted_once_and_memory_is_never_overdrawn(self, recovery, blocks):
        result, steps = toy_run(blocks, cpu_slots=64 if "host" in recovery else 0)
        assert len(steps) <= 34  # the stepper's last position shows the end
        for step in steps:
            assert sum(-(-count // 4) for count in step.tokens.values()) <= blocks
        # Each request gets its tokens by prefills and decodes; a recomputed one decodes no token twice.
        made = sum(kind in ("prefill", "decode") for step in steps for kind in step.doing.values())
        assert made == sum(one.num_output_tokens for one in TOY) == result.output_tokens

    def test_the_title_says_what_happens(self):
        assert "E gives way, its 9 tokens are dropped" in view("preemption.timeline", step=6).title
        moved = view("preemption.timeline", step=6, recovery="swap to the host")
        assert "its 9 tokens move to the host" in moved.title
        assert ["E", "on the host", 0, 9] in [list(row) for row in moved.table]
        assert "comes back and prefills 22 tokens" in view("preemption.timeline", step=21).title


class TestSwap:
    @pytest.mark.parametrize(
        "block_size, milliseconds",
        [(1, 1705.51), (2, 886.31), (4, 476.71), (8, 271.91), (16, 169.51), (32, 118.31)],
    )
    def test_round_trips_of_the_lecture(self, block_size, milliseconds):
        """Oracles L7.swap.table and L7.swap.cross."""
        made = numbers("preemption_swap.swap_or_recompute", block_size=block_size)
        assert made["swap_ms"] == pytest.approx(milliseconds, abs=0.006)

    def test_the_crossing_lies_between_16_and_32(self):
        """Oracles L7.swap.cross and L7.recompute.143.77."""
        made = numbers("preemption_swap.swap_or_recompute")
        assert made["first"] == 32
        assert made["recompute_ms"] == pytest.approx(143.77, abs=0.006)

    def test_doubling_the_bandwidth_saves_two_per_cent_at_block_size_1(self):
        """Pedagogy, chapter 5, prediction: 33.6 of 1,705.5 ms."""
        slow, fast = (
            numbers("preemption_swap.swap_or_recompute", bandwidth=rate)["swap_ms"] for rate in (25, 50)
        )
        assert 1 - fast / slow == pytest.approx(0.02, abs=0.002)
        assert asked("preemption_swap.swap_or_recompute").text == "2 %"

    def test_one_copy_per_block(self):
        """Pedagogy, chapter 5, exercise 3: 68.4 ms; then swapping wins at every block size."""
        merged = numbers("preemption_swap.swap_or_recompute", block_size=16, merged=True)
        assert merged["swap_ms"] == pytest.approx(68.4, abs=0.05) and merged["first"] == 1


class TestPressure:
    def test_swapping_replaces_recomputing(self):
        recompute = numbers("preemption_pressure.overload")
        swap = numbers("preemption_pressure.overload", recovery="swap, ample host")
        assert recompute["recomputed"] > 0 == recompute["swapped"]
        assert swap["swapped"] > 0 == swap["recomputed"]

    def test_a_few_per_cent_fewer_blocks_multiply_p99_while_the_median_stays(self):
        """Issue 5, item 4: the pressure cliff, at 2 requests/s between 100 % and 94 % of the memory."""
        made = runs(2.0, 0.0)
        assert made[94]["p99_ttft_s"] > 4 * made[100]["p99_ttft_s"]
        assert made[94]["p50_ttft_s"] < 1.1 * made[100]["p50_ttft_s"]
        assert "several" in asked("preemption_pressure.cliff").text

    @pytest.mark.parametrize("rate", RATES)
    def test_p99_leaves_the_prefill_time_when_one_in_a_hundred_waits(self, rate):
        """The explanation under the figure, on every point: P99 is above the limit exactly if over 1 % are."""
        limit_s = precomputed()["waited_s"]
        for watermark in WATERMARKS:
            for percent, made in runs(rate, watermark).items():
                assert (made["waited_share"] > 0.01) == (made["p99_ttft_s"] > limit_s), (percent, watermark)

    def test_the_file_is_what_the_script_writes(self):
        made = precomputed()
        assert tuple(made["memory_percent"]) == MEMORY_PERCENT == PERCENTS
        assert runs(2.0, 0.01)[94] == point(94, 2.0, 0.01)


class TestTooLarge:
    def test_C07_the_large_one_is_refused_and_the_short_one_served(self):
        """49 blocks of 16 and a prompt of 1,002 tokens (63 blocks; 64 with its answer of 10)."""
        made = view("preemption.too_large")
        assert made.numbers == {"needed": 64, "rejected": 1}
        assert "done after" in made.table[2][3]

    def test_a_prompt_that_fits_while_its_answer_does_not_is_refused_too(self):
        made = view("preemption.too_large", prompt=700, output=101)
        assert made.numbers == {"needed": 50, "rejected": 1} and "The prompt alone would fit" in made.note


def test_a_declared_limit_that_is_exact_still_reserves_more_than_is_used():
    """SERVE-5. With outputs all of one length n and prompt p it would be (p + n) / (p + n/2)."""
    assert numbers("preemption.declared_limit", declared=1.0)["ratio"] > 1.4
    at = numbers("preemption.declared_limit")["at_lecture"]
    assert at == pytest.approx(5 / 3, abs=0.05)  # "two thirds longer", says the text


class TestExercises:
    def draws(self, name):
        return [EXERCISES[f"preemption_exercises.{name}"].draw(seed) for seed in range(1, 40)]

    def test_stall(self):
        """Pedagogy, chapter 5, exercise 1: eight blocks of 4, two prompts of 8: 8 decode steps."""
        found = [p.answer for p in self.draws("stall") if p.question.startswith("8 blocks of 4 tokens. 2 prompts of 8 ")]
        assert set(found) == {8}

    def test_lost_tokens(self):
        """The same exercise: the younger one loses 16 tokens."""
        found = [p.answer for p in self.draws("lost_tokens") if p.question.startswith("8 blocks of 4 tokens, two prompts of 8,")]
        assert set(found) == {16}

    def test_tie_bandwidth(self):
        """Pedagogy, chapter 5, exercise 2: about 40.6 GB/s for 1,024 tokens in blocks of 16."""
        found = {p.answer for p in self.draws("tie_bandwidth") if p.question.startswith("1,024") and "blocks of 16," in p.question}
        assert len(found) == 1 and found.pop() == pytest.approx(40.6, abs=0.05)

    def test_merged_copies(self):
        """Pedagogy, chapter 5, exercise 3: 68.4 ms at 25 GB/s."""
        found = {p.answer for p in self.draws("merged_copies") if "1,024 tokens" in p.question and "of 25 GB/s" in p.question}
        assert len(found) == 1 and found.pop() == pytest.approx(68.4, abs=0.05)

    def test_just_before(self):
        """Exercise 4: the known load passes, one step more is too much, and half of it is too little."""
        search = EXERCISES["preemption_exercises.just_before"].draw(1)
        [control] = search.controls
        known = search.known["rate"]
        more = control.positions[control.positions.index(known) + 1]
        assert search.check({"rate": known}).right
        assert "too much" in search.check({"rate": more}).reply
        assert "go up" in search.check({"rate": control.positions[0]}).reply
