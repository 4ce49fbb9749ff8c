"""Chapter 6: what its explorers and exercises must say, with where each number comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from shown import asked, numbers, view

from kvlib.errors import ConfigError
from kvlib.explore import EXERCISES, check_answer
from kvlib.figures import serving, serving_data, serving_memory, serving_sharing
from kvlib.figures.data import make_serving, make_serving_sharing
from kvlib.figures.serving_data import best_rate, curve, gain, mean_latency_ms, rate_behind_prefix, rate_with_memory
from kvlib.figures.serving_knobs import BASE, run, sample_of

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared")) / "data"
REAL_TRACES = ("AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl")


class TestPrecomputed:
    """A sample of ``serving.json`` is simulated again; the script's axes are the explorers' positions."""

    @pytest.mark.parametrize(
        "system, workload, memory",
        [("OPT-13B", "ShareGPT", "max"), ("OPT-66B", "chat", "static"), ("OPT-13B", "Alpaca", "static")],
    )
    def test_highest_rates_are_found_again(self, system, workload, memory):
        assert make_serving.best(system, workload, memory) == best_rate(system, workload, memory)

    def test_a_curve_is_found_again(self):
        paged_rate = best_rate("OPT-175B", "chat", "paged")
        assert make_serving.curve("OPT-175B", "chat", "max", paged_rate) == curve("OPT-175B", "chat", "max")

    def test_the_smaller_tables_are_found_again(self):
        capacity = serving_data.precomputed()["capacity"]
        assert make_serving.watched(1.1, 200, capacity) == mean_latency_ms(1.1, 200)
        assert make_serving.ample("classification", 2, "max") == rate_with_memory("classification", 2, "max")
        assert make_serving.shared("chat", 512, False) == rate_behind_prefix("chat", 512, False)

    def test_shared_blocks_are_found_again(self):
        assert make_serving_sharing.best("documents", False) == serving_sharing.best_rate("documents", False)
        rate = serving_sharing.best_rate("chat", True)
        [*_, expected] = serving_sharing.caching_curve("chat", False)
        with patch.object(make_serving_sharing, "SHARES", make_serving_sharing.SHARES[-1:]):
            assert make_serving_sharing.curve("chat", False, rate) == [expected]
        assert make_serving_sharing.best_sampled("Alpaca", "samples", 2) == serving_sharing.sampled_rate(
            "Alpaca", "samples", 2
        )
        assert serving_sharing.SHARES == make_serving_sharing.SHARES
        assert serving_sharing.SIZES == make_serving_sharing.SIZES
        sizes = {**make_serving_sharing.CACHING_REQUESTS, **make_serving_sharing.SAMPLED_REQUESTS}
        assert serving_sharing.precomputed()["num_requests"] == sizes
        assert serving_sharing.LIMITS_MS == {kind: 1e3 * limit for kind, limit in make_serving_sharing.LIMITS_S.items()}
        assert tuple(serving_sharing.KINDS) == make_serving_sharing.KINDS
        assert set(serving_sharing.WAYS) == set(make_serving_sharing.WAYS)
        assert set(serving_sharing.LOADS) == set(make_serving_sharing.SAMPLED)

    def test_axes_agree(self):
        assert serving.SHARES == make_serving.SHARES
        assert (serving.LOADS, serving.RUN_LENGTHS) == (make_serving.LOADS, make_serving.RUN_LENGTHS)
        assert serving_memory.TIMES == make_serving.MEMORY_TIMES
        assert serving_memory.PREFIXES == make_serving.PREFIXES
        assert serving_data.SYSTEMS == tuple(make_serving.SYSTEMS)
        assert serving_data.WORKLOADS == tuple(make_serving.WORKLOADS)
        assert set(serving_memory.AMPLE_WORKLOADS) == set(make_serving.AMPLE_WORKLOADS)


class TestSharing:
    """Where requests share blocks: prefixes that are found, and answers to one prompt."""

    @pytest.mark.parametrize("kind", serving_sharing.KINDS)
    def test_caching_never_costs_and_finds_what_the_kind_repeats(self, kind):
        assert serving_sharing.caching_gain(kind) >= 1
        for off, on in zip(serving_sharing.caching_curve(kind, False), serving_sharing.caching_curve(kind, True)):
            assert off[0] == on[0] and off[3] == 0 < on[3] < 1
            assert on[2] < off[2]  # the first token comes earlier

    def test_chat_gains_and_retrieval_hardly_does(self):
        assert serving_sharing.caching_gain("chat") > 1.2 * serving_sharing.caching_gain("rag")
        assert asked("serving_sharing.caching").text.startswith("Chat gains")

    @pytest.mark.parametrize("load", serving_sharing.LOADS)
    def test_the_more_is_shared_the_more_is_served(self, load):
        """Beams share more than samples, samples more than requests; one answer shares nothing."""
        for size in serving_sharing.SIZES:
            rates = [serving_sharing.sampled_rate(load, way, size) for way in ("oracle", "apart", "samples", "beams")]
            assert rates == sorted(rates) and rates[0] < rates[3]
        assert len({serving_sharing.sampled_rate(load, way, 1) for way in ("apart", "samples", "beams")}) == 1

    def test_the_gain_over_oracle_grows_with_the_width_of_the_beam(self):
        """Section 6.3 of the paper: on OPT-13B and Alpaca from 1.3 (one answer) to 2.3 times (six beams)."""
        gains = [
            serving_sharing.sampled_rate("Alpaca", "beams", size) / serving_sharing.sampled_rate("Alpaca", "oracle", size)
            for size in serving_sharing.SIZES
        ]
        assert gains == sorted(gains)
        assert gains[0] > 1.3 and gains[-1] == pytest.approx(2.3, rel=0.1)


class TestCurves:
    def test_gains_on_sharegpt(self):
        """Oracle L7.rate: over Oracle in 1.5 to 3, over Max above 2.5."""
        made = numbers("serving.curves")
        assert 1.5 <= made["gain_oracle"] <= 3 and made["gain_max"] > 2.5
        assert asked("serving.curves").text == "Paging"

    @pytest.mark.parametrize("system", serving_data.SYSTEMS)
    @pytest.mark.parametrize("workload", serving_data.WORKLOADS)
    def test_who_holds_less_leaves_no_later(self, system, workload):
        """More knowledge or less reservation never lowers the rate; 3 % for the noise of bisection on one run."""
        rates = [best_rate(system, workload, policy) for policy in serving_data.POLICIES]
        assert all(later >= 0.97 * earlier for earlier, later in zip(rates, rates[1:]))

    def test_curves_meet_where_everybody_keeps_up(self):
        """Aha figure: the lines lie on one another before they leave."""
        slowest = best_rate("OPT-13B", "ShareGPT", "max")
        ms = [[row[1] for row in curve("OPT-13B", "ShareGPT", p) if row[0] < 0.3 * slowest][-1] for p in ("max", "paged")]
        assert ms[0] == pytest.approx(ms[1], rel=0.1)

    def test_a_better_prefix_gains_more(self):
        """Paper, section 6.4: 1.67 times over Oracle for one shot, 3.58 for five: the longer prefix gains more."""
        one, five = (gain("OPT-13B", f"translation, {n}-shot", "oracle") for n in (1, 5))
        assert 1.5 < one < five


class TestRunLength:
    def test_only_beyond_capacity_does_the_mean_follow_the_run(self):
        calm = [mean_latency_ms(0.7, n) for n in serving.RUN_LENGTHS]
        assert max(calm) < 1.1 * min(calm)
        beyond = [mean_latency_ms(1.25, n) for n in serving.RUN_LENGTHS]
        assert beyond == sorted(beyond) and beyond[-1] > 10 * beyond[0]
        assert "how long you watch" in asked("serving.run_length").text


class TestMemory:
    def test_ample_memory_makes_the_lines_coincide(self):
        gains = [numbers("serving_memory.ample", times=t)["gain"] for t in serving_memory.TIMES]
        assert gains[1] > 2.5 and gains == sorted(gains, reverse=True)
        assert "buys nothing" in view("serving_memory.ample", workload="classification").title
        assert asked("serving_memory.ample").text == "hardly higher"

    def test_without_a_prefix_sharing_changes_nothing_and_longer_ones_gain_more(self):
        gains = [numbers("serving_memory.shared_prefix", prefix=p)["gain"] for p in serving_memory.PREFIXES]
        assert gains[0] == 1 and gains == sorted(gains)


class TestKnobs:
    def test_a_batch_limit_trades_preemptions_for_a_queue(self):
        limited = view("serving_knobs.symptom", max_num_seqs=8)
        assert limited.numbers["preemptions"] == 0 < numbers("serving_knobs.symptom")["preemptions"]
        assert "keeps requests out" in limited.title

    def test_chunks_shorten_the_longest_step(self):
        longest = [numbers("serving_knobs.symptom", step_tokens=n)["longest_step_ms"] for n in (0, 512, 256, 128)]
        assert longest == sorted(longest, reverse=True)

    def test_little_law_holds_on_the_base_run(self):
        """Requests running = completions per second × time in the batch, so running <= rate × latency."""
        made = run(**BASE)
        in_system = made.requests_per_s * made.latency_s
        waiting = sum(one.num_waiting * (one.end_s - one.start_s) for one in made.timeline) / made.duration_s
        assert in_system == pytest.approx(made.mean_running + waiting, rel=0.02)

    def test_without_a_file_a_drawn_load_is_named(self):
        assert "no file yet" in view("serving_knobs.your_trace").title

    @pytest.mark.parametrize("name", REAL_TRACES)
    def test_real_traces_are_read(self, name):
        if not (SHARED / name).exists():
            pytest.skip(f"{name} is not here")
        made = view("serving_knobs.your_trace", path=str(SHARED / name), model="llama-3-8b")
        assert "busiest minute" in made.title and sample_of(str(SHARED / name))[0].arrival_s == 0

    def test_a_request_larger_than_the_memory_is_named(self, tmp_path):
        file = tmp_path / "long.jsonl"
        row = {"timestamp": 0, "input_length": 20_000, "output_length": 5, "hash_ids": list(range(40))}
        file.write_text(json.dumps(row) + "\n")
        with pytest.raises(ConfigError, match="20,005 tokens"):
            view("serving_knobs.your_trace", path=str(file))


class TestExercises:
    def test_little(self):
        """Pedagogy, chapter 6: 30.42 running at 2 requests/s are 15.2 s; over 338 tokens, 45 ms."""
        assert round(30.42 / 2, 1) == 15.2 and round(1e3 * 30.42 / 2 / 338) == 45
        drawn = [EXERCISES["serving_exercises.little"].draw(seed) for seed in range(1, 40)]
        assert any(round(one.answer) == 45 for one in drawn)

    @pytest.mark.parametrize("seed", range(1, 13))
    def test_goodput_is_below_both_shares(self, seed):
        problem = EXERCISES["serving_exercises.goodput"].draw(seed)
        assert check_answer(problem, str(problem.answer)).right
        throughput, starts, flows = (slip.value for slip in problem.slips[:3])
        assert problem.answer < min(starts, flows) < throughput

    def test_a_rate_above_the_limit_is_refused(self):
        search = EXERCISES["serving_exercises.within_limit"].draw(1)
        assert search.check(search.known).right
        assert "go down" in search.check({"rate": 6.4}).reply and "go up" in search.check({"rate": 0.1}).reply

    @pytest.mark.parametrize("seed", range(1, 5))
    def test_chat_is_no_answer_and_long_prompts_are(self, seed):
        search = EXERCISES["serving_exercises.buys_nothing"].draw(seed)
        assert search.check(search.known).right
        assert not search.check({"prompt": 64, "output": 500}).right
        assert "rejected" in search.check({"prompt": 1900, "output": 500}).reply
