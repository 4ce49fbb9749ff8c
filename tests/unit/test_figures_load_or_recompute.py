"""Chapter 8: oracles and expectations of its explorers and exercises.

What holds for every explorer is in test_explore_registry.py.
"""

import json
import re

import pytest
from shown import numbers

from kvlib.cost import break_even_bytes_per_s, prefill_s, recompute_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.explore import EXERCISES, REGISTRY, check_answer
from kvlib.specs import get_gpu, get_link, get_model
from kvlib.tiers import overlapped_prefill

MODULES = ("load_or_recompute", "load_or_recompute_overlap")
IDS = [i for i in REGISTRY if i.partition(".")[0] in MODULES]
LLAMA, H100 = get_model("llama-3-8b"), get_gpu("h100-80gb")


def table(explorer_id, **params):
    return {row[0]: row[1:] for row in REGISTRY[explorer_id].view(**params).table[1:]}


# Break-even.

def test_break_even_oracles():
    """L9.breakeven8b: about 6 GB/s (5.58); L9.breakeven.qwen: 4.5; L9.breakeven70: 1.6 (8,000 tokens, H100)."""
    for model, gb_per_s in (("llama-3-8b", 5.58), ("qwen2.5-14b", 4.48), ("llama-3-70b", 1.6)):
        found = numbers("load_or_recompute.break_even", model=model)["break_even_gb_per_s"]
        assert found == pytest.approx(gb_per_s, rel=0.01)


def test_gqa_breaks_even_at_a_quarter_of_mha():
    """L9.breakeven.gqa: 8 KV heads of 32."""
    mha, gqa = (numbers("load_or_recompute.break_even", attention=kind) for kind in ("MHA", "GQA"))
    assert gqa["break_even_gb_per_s"] / mha["break_even_gb_per_s"] == 0.25


def test_fewer_bytes_make_more_places_pay():
    wide, narrow = (numbers("load_or_recompute.break_even", attention=kind) for kind in ("MHA", "MLA"))
    assert wide["places_that_pay"] < narrow["places_that_pay"]


def test_the_aha_prediction_is_decided_by_the_cost_model():
    """pedagogy.md: it falls by nearly half from 8,000 to 64,000 tokens."""
    asked = REGISTRY["load_or_recompute.break_even"].predict()
    assert asked.options[asked.answer].text == "falls"
    ratio = break_even_bytes_per_s(LLAMA, H100, 64000) / break_even_bytes_per_s(LLAMA, H100, 8000)
    assert 0.5 < ratio < 0.6


def test_every_band_lies_between_delivered_and_rated_bandwidth():
    picture = REGISTRY["load_or_recompute.break_even"].view().picture
    names = [note["text"] for note in picture["layout"]["annotations"]]
    bands = {name: (shape["y0"], shape["y1"]) for name, shape in zip(names, picture["layout"]["shapes"])}
    assert bands["SSD 7 GB/s"] == pytest.approx((5.6, 7.0))
    assert bands["network 3 Gb/s"] == pytest.approx((0.30, 0.375))


def test_your_own_config_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }))
    for explorer_id in ("load_or_recompute.break_even", "load_or_recompute.every_place"):
        assert numbers(explorer_id, config=str(path)) == numbers(explorer_id, model="llama-3-8b")


def test_a_config_that_names_no_family_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="model_type"):
        REGISTRY["load_or_recompute.break_even"].view(config=str(path))


# Places and models.

def test_every_place_oracles():
    """L9.recomp188; L9.load.cpu: 9 and 7 times, and even; L9.load.3gb: 1/18."""
    rows = table("load_or_recompute.every_place")
    assert rows["recompute"][1] == pytest.approx(188, rel=0.01)
    for place, ratio in (("CPU memory", 9), ("RDMA 400 Gb/s", 7), ("SSD 7 GB/s", 1.0), ("network 3 Gb/s", 1 / 18)):
        assert rows[place][2] == pytest.approx(ratio, rel=0.04)


def test_your_link_beats_recompute_above_break_even_only():
    needed = break_even_bytes_per_s(LLAMA, H100, 8000) / 1e9
    slider = next(c for c in REGISTRY["load_or_recompute.every_place"].controls if c.name == "your_link")
    for rate in slider.positions:
        found = numbers("load_or_recompute.every_place", your_link=rate)
        assert (found["your_ms"] < found["recompute_ms"]) is (rate > needed)


def test_two_models_oracles():
    """L7.ssd7x: about 7 times for the 70B, OPT-13B slower; L7.ex9: 13 times fewer bytes per FLOP (matrix products)."""
    found = numbers("load_or_recompute.two_models")
    assert found["large_on_four_ssds"] == pytest.approx(7, abs=0.5)
    assert found["small_on_four_ssds"] < 1
    as_mha = numbers("load_or_recompute.two_models", attention="MHA")
    # Eight times the KV heads, eight times the bytes; four SSDs also charge 80 us per read, under 1% here.
    assert found["large_on_four_ssds"] / as_mha["large_on_four_ssds"] == pytest.approx(8, rel=0.01)


# The chat.

def test_chat_oracles():
    """L9.chat20, with the question's own prefill taken off: 29.2 ms and 4.98 s."""
    slow = numbers("load_or_recompute.chat")
    fast = numbers("load_or_recompute.chat", place="CPU memory")
    assert slow["hit_ms"] - slow["gpu_hit_ms"] == pytest.approx(4983, rel=0.01)
    assert fast["hit_ms"] - fast["gpu_hit_ms"] == pytest.approx(29.2, rel=0.01)
    asked = REGISTRY["load_or_recompute.chat"].predict()
    assert asked.options[asked.answer].text == "much later"


def test_at_3_gbps_every_hit_hurts():
    assert "19 of 20 turns are slower" in REGISTRY["load_or_recompute.chat"].view().note


# Overlap and split.

def test_overlap_oracle():
    """L7.layerwise: 870 and 454 ms, 60 ms more without overlap."""
    assert numbers("load_or_recompute_overlap.overlap", cached_percent=0)["prefill_ms"] == pytest.approx(870, rel=0.02)
    assert numbers("load_or_recompute_overlap.overlap")["prefill_ms"] == pytest.approx(454, rel=0.02)
    rows = table("load_or_recompute_overlap.overlap")
    added = rows["load everything, then compute (ms)"][0] - rows["overlapped (ms)"][0]
    assert added == pytest.approx(60, rel=0.03)


def test_gantt_opens_a_gap_exactly_when_loading_is_slower():
    for percent, waits in ((50, False), (99, True)):
        view = REGISTRY["load_or_recompute_overlap.overlap"].view(cached_percent=percent)
        assert ("the GPU waits" in view.title) is waits
        run = overlapped_prefill(get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("nvme-4x6gb"),
                                 8704 - 8704 * percent // 100, 8704 * percent // 100, num_gpus=8)
        gaps = [b.start_s - a.end_s for a, b in zip(run.computes, run.computes[1:])]
        assert (max(gaps) > 1e-9) is waits


def test_gantt_names_its_lanes_in_words():
    drawn = REGISTRY["load_or_recompute_overlap.overlap"].view().picture
    for word in ("load", "compute", "store", "serial", "overlap"):
        assert f">{word}</text>" in drawn


def test_split_beats_both_and_meets_where_they_finish_together():
    found = numbers("load_or_recompute_overlap.split")
    assert found["saved"] > 2          # at break-even, and the front is the cheap half
    front = found["recomputed_tokens"]
    assert 1e3 * recompute_s(LLAMA, H100, front) == pytest.approx(found["total_ms"], rel=0.001)


@pytest.mark.parametrize("explorer_id", IDS)
def test_every_state_has_a_finding_as_title(explorer_id):
    explorer = REGISTRY[explorer_id]
    titles = {state["title"] for states in explorer.star().values() for state in states}
    assert len(titles) > 5 and all(any(c.isdigit() for c in title) for title in titles)


# Exercises.

def test_lecture_9_exercise_8_a_million_tokens():
    # 1e6 tokens × 131,072 bytes = 131 GB; over the 51.2 GB/s of PCIe 5 that is 2.56 s, far more than a step of 300 tokens computes.
    link, million = get_link("pcie5-x16"), 1_000_000
    assert LLAMA.shape.kv_bytes(million) == pytest.approx(131e9, rel=0.01)
    load_s = transfer_s(LLAMA.shape.kv_bytes(million), link)
    assert load_s == pytest.approx(2.6, rel=0.02)
    assert overlapped_prefill(LLAMA, H100, link, 300, million).prefill_s >= load_s > 10 * prefill_s(LLAMA, H100, 300, million)


def test_bytes_per_flop_oracle():
    """L7.ex9: 13 (13.4 with 25.7 GFLOP, the count of the weights)."""
    for seed in range(1, 60):
        problem = EXERCISES["load_or_recompute_exercises.bytes_per_flop_ratio"].draw(seed)
        if "OPT-13B" in problem.question and "Llama-2-70B" in problem.question:
            assert problem.answer == pytest.approx(13.4, rel=0.01)
            return
    pytest.fail("no seed drew the lecture's pair")


def test_break_even_exercise_follows_from_the_numbers_in_the_question():
    """The reader has KiB, tokens and milliseconds only; the answer must be reachable from those."""
    for seed in range(1, 20):
        problem = EXERCISES["load_or_recompute_exercises.break_even_bandwidth"].draw(seed)
        words = problem.question.replace(",", "").split()
        kib, tokens, ms = (int(words[words.index(unit) - 1]) for unit in ("KiB", "tokens", "ms."))
        assert check_answer(problem, f"{kib * 1024 * tokens / (ms / 1e3) / 1e9:.3g}").right
        assert "gigabits" in check_answer(problem, repr(problem.answer * 8)).reply


def test_where_they_meet_solves_the_quadratic():
    """a n + b n^2 = l (N - n), so n = (-(l + a) + sqrt((l + a)^2 + 4 b l N)) / 2b, from the numbers in the question."""
    given = re.compile(r"All ([\d,]+) tokens .* in ([\d.]+) µs\. .* takes ([\d.]+) µs × n \+ ([\d.]+) ns")
    for seed in range(1, 20):
        problem = EXERCISES["load_or_recompute_exercises.where_they_meet"].draw(seed)
        read = given.search(problem.question).groups()
        total, load, linear, square = (float(text.replace(",", "")) for text in read)
        b, s = square * 1e-3, load + linear
        root = (-s + (s * s + 4 * b * load * total) ** 0.5) / (2 * b)
        assert abs(problem.answer - root) <= 1
