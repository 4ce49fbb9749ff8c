"""Chapter 11: oracles and expectations of its explorers and exercises.

What holds for every explorer is in test_explore_registry.py.
"""

import importlib
import json
import random

import pytest
from shown import view

from kvlib.cluster import replay_prefill
from kvlib.explore import EXERCISES, REGISTRY, check_answer
from kvlib.figures import mooncake, mooncake_exercises
from kvlib.figures.mooncake import NAMES, run, small_trace, two_switches

for module in ("mooncake_steps", "mooncake_pool"):
    importlib.import_module(f"kvlib.figures.{module}")


def rows(explorer_id, **params):
    return {row[0]: row[1:] for row in view(explorer_id, **params).table[1:]}


# --- the trap ---


def test_the_small_trace_has_the_trap():
    assert all(request.block_ids[0] == 0 for request in small_trace().requests)
    shown = view("mooncake.columns", policy="longest_prefix")
    assert shown.numbers["busiest_share"] == 1.0
    assert shown.numbers["hit_ratio"] < view("mooncake.columns", policy="random").numbers["hit_ratio"]
    counts = [row[1] for row in shown.table[1:]]
    assert sorted(counts) == [0] * 7 + [240]


def test_the_prediction_is_decided_by_runs():
    """pedagogy.md: lower, because all requests share block 0."""
    asked = REGISTRY["mooncake.columns"].predict()
    assert asked.options[asked.answer].text == "lower"


def test_columns_at_the_start_are_empty():
    shown = view("mooncake.columns", step=0)
    assert shown.numbers == {"busiest_share": 0.0, "requests": 0, "hit_ratio": 0.0, "longest_queue_s": 0}
    assert all(row[1:] == [0, 0.0, 0, 0] for row in shown.table[1:])


def test_hot_blocks_spread_under_the_cost_rule():
    for policy, spread in (("longest_prefix", False), ("kvcache_centric", True)):
        shared = [row[4] for row in view("mooncake.columns", policy=policy).table[1:]]
        assert (sum(n > 0 for n in shared) == 8) is spread


# --- routing ---


def test_the_table_is_the_replay():
    shown = rows("mooncake.routing", load=6.0)
    result = replay_prefill(
        small_trace(), policy="cache_aware", speed=6.0 / mooncake.DRAWN_AT_PER_S, cache_blocks=200,
        link=mooncake.network(800),
    )
    assert shown["cache-aware"][:3] == [result.hit_ratio, result.imbalance, result.ttft_s]


@pytest.mark.parametrize("load", [4.0, 8.0])
def test_orderings_at_default_and_high_load(load):  # L7.conductor, L9.sched, P.mc.fig8: ordering only
    ttft = {name: row[2] for name, row in rows("mooncake.routing", load=load).items()}
    assert ttft["longest prefix"] > ttft["random"] > ttft["least load"] > ttft["cache-aware"] > ttft["KVCache-centric"]


def test_a_dropped_trace_is_used_and_a_bad_one_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    path.write_text("".join(json.dumps(row | {"timestamp": 1000 * i}) + "\n" for i in range(20)))
    shown = view("mooncake.routing", trace=str(path))
    assert "Your trace, its first 20 requests" in shown.note
    # 19 of 20 identical prompts are found under longest prefix, whatever the load.
    assert rows("mooncake.routing", trace=str(path))["longest prefix"][0] == pytest.approx(19 / 20)
    path.write_text(json.dumps(row) + "\n")
    assert "at one instant" in json.loads(REGISTRY["mooncake.routing"].json(json.dumps({"trace": str(path)})))["error"]
    (tmp_path / "bad.jsonl").write_text("no trace\n")
    assert "error" in json.loads(REGISTRY["mooncake.routing"].json(json.dumps({"trace": str(tmp_path / "bad.jsonl")})))


def test_a_limit_refuses_only_who_would_wait_too_long():
    free, limited = rows("mooncake.routing"), rows("mooncake.routing", slo=5)
    assert all(row[-1] == 0 for row in free.values())
    assert limited["longest prefix"][-1] > limited["random"][-1] > 0


# --- two gains ---


def test_the_switches_are_four_rules():
    chosen = {(b, r): two_switches(b, r) for b in (False, True) for r in (False, True)}
    assert len(set(chosen.values())) == 4 and set(chosen.values()) <= set(NAMES)


def test_each_gain_alone_helps_and_both_help_most():
    """MOON-2: switch off balance alone and reach alone."""
    table = rows("mooncake.two_gains")
    reused = {words: table[words][1] for words in ("neither", "balance", "reach", "both")}
    waiting = {words: table[words][3] for words in reused}
    assert reused["neither"] < reused["reach"] < reused["balance"] < reused["both"]
    assert waiting["both"] < waiting["balance"] < waiting["reach"] < waiting["neither"]


def test_one_pool_beats_private_caches():  # P.mc.fast25: 1.4 to 2.4 times as many hits; here blind routing
    numbers = view("mooncake.two_gains", balance=False, reach=False, pooled=True).numbers
    assert numbers["pooled_hit_ratio"] > 1.4 * numbers["hit_ratio"]


def test_bars_add_up_to_all_blocks():
    for params in ({}, {"pooled": True}, {"balance": False}, {"reach": False}, {"balance": False, "reach": False}):
        picture = view("mooncake.two_gains", **params).picture
        for values in zip(*(part["x"] for part in picture["data"])):
            assert sum(values) == pytest.approx(100)


# --- steps, pipeline, occupancy, tiers ---


def test_streaming_moves_the_second_token_only():
    on, off = (view("mooncake_steps.four_steps", stream=stream).numbers for stream in (True, False))
    assert on["ttft_ms"] == off["ttft_ms"] and on["first_gap_ms"] < off["first_gap_ms"] / 10


def test_the_pipeline_prediction():
    asked = REGISTRY["mooncake_steps.pipeline"].predict()
    assert asked.options[asked.answer].text == "a bit more than three times as fast"


def test_tensor_parallelism_loses_to_the_pipeline_on_long_prompts():
    for link in (100, 800):
        numbers = view("mooncake_steps.three_ways", link=link).numbers
        assert numbers["chunked_s"] < numbers["tensor_s"]
    # The honest part: an ideal ring on an idle fast network is a little faster.
    numbers = view("mooncake_steps.three_ways").numbers
    assert 0.9 < numbers["sequence_s"] / numbers["chunked_s"] < 1


def test_with_full_kv_heads_the_ssd_is_slower_than_computing():  # L7.ssd7x, the 13B half: slower from SSD
    assert "slower than computing" in view("mooncake_pool.tiers", model="opt-13b").title
    assert "faster than computing" in view("mooncake_pool.tiers", model="llama-2-70b").title


def test_without_an_ssd_only_dram_hits_are_left():
    shown = rows("mooncake_pool.tiers", ssd_blocks=0)
    assert shown["from SSD"][0] == shown["written to the SSD"][0] == 0


# --- exercises ---


def test_the_lectures_numbers_are_a_draw():
    """L9 exercise 5: 2.1, 0.728 and 3.2 s; the break-even is the prefill time of a block, 0.1 s."""

    class Lecture(random.Random):
        wanted = iter((20, 100, 4, 2, 500, 3000, 2))

        def choice(self, options):
            value = next(self.wanted)
            assert value in options
            return value

    problem = mooncake_exercises.three_choices(Lecture())
    assert problem.answer == 0.728
    assert "2.1 s" in problem.solution and "3.2 s" in problem.solution


def test_slips_are_recognized():
    for name in ("three_choices", "pull_break_even", "pipeline_speedup", "enough_chunks"):
        problem = EXERCISES[f"mooncake_exercises.{name}"].draw(3)
        assert check_answer(problem, repr(problem.answer)).right
        for slip in problem.to_dict()["slips"]:
            assert not check_answer(problem, repr(slip["value"])).right


def test_pulls_hurt_on_slow_networks_only():
    search = EXERCISES["mooncake_exercises.pulls_that_hurt"].draw(1)
    assert not search.check({"link": 800, "load": 4.0, "cache_blocks": 200}).right
    assert not search.check({"link": 200, "load": 7.0, "cache_blocks": 200}).right
    assert search.check(search.known).right


def test_runs_are_remembered():
    assert run("random", 4.0, cache_blocks=200) is run("random", 4.0, cache_blocks=200)
