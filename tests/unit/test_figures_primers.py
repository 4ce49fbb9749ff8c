"""What the primers' pictures and exercises claim, checked against their own numbers and by hand."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvlib.explore import EXERCISES, REGISTRY, Search, check_answer
from kvlib.explore.exercise import STORED_SEEDS
from kvlib.figures import primer_batch, primer_cache, primer_memory
from kvlib.figures.primer_batch import DEFAULT_LONGEST
from kvlib.primers.batching import SCHEDULING, serve

PAGES = {
    "primer_cache": "what_is_cached", "primer_batch": "batch_over_time", "primer_memory": "virtual_memory",
}
EXPLORERS = [item for item in REGISTRY if item.partition(".")[0] in PAGES]
CHECKS = [item for item in EXERCISES if item.partition(".")[0] in PAGES]
SEEDS = range(1, STORED_SEEDS + 1)


def all_states(explorer):
    return [state for states in explorer.star().values() for state in states]


# What the page needs

@pytest.mark.parametrize("module", PAGES)
def test_a_page_shows_all_its_module_declares_and_nothing_else(module):
    page = Path(__file__).parents[2] / "book" / "primers" / f"{PAGES[module]}.md"
    shown = re.findall(r"\{(?:explorer|exercise-check)\} (\S+)", page.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(item for item in [*EXPLORERS, *CHECKS] if item.startswith(f"{module}."))
    assert sum(item.partition(".")[2].startswith("ready_") for item in shown) == 3


@pytest.mark.parametrize("item", EXPLORERS)
def test_every_drawing_is_well_formed_and_described(item):
    for state in all_states(REGISTRY[item]):
        if state["kind"] == "svg":
            root = ElementTree.fromstring(state["picture"])
            assert [child.tag.rpartition("}")[2] for child in root[:2]] == ["title", "desc"]
            for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
                assert float(shape.get("width")) > 0
                assert -0.1 <= float(shape.get("x")) <= 480.1 - float(shape.get("width"))


@pytest.mark.parametrize("item", EXPLORERS)
def test_every_position_of_a_control_says_something_else(item):
    for states in REGISTRY[item].star().values():
        texts = [json.dumps(state) for state in states]
        assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("item", [item for item in EXPLORERS if REGISTRY[item].predict])
def test_predictions_answer_every_choice_with_the_result(item):
    asked = REGISTRY[item].predict()
    right = asked.options[asked.answer].reply
    # A wrong choice gets a word on why it looks right, and then the same result.
    assert all(option.reply.endswith(right) for option in asked.options)
    assert len({option.text for option in asked.options}) == len(asked.options) >= 3


# Primer 1

@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_both_runs_agree_at_every_step_and_the_cache_computes_one_row(kv_heads):
    for step in range(primer_cache.LAST_STEP + 1):
        numbers = primer_cache.attention_steps(step, kv_heads).numbers
        assert numbers["same"] == 1
        assert numbers["computed_without"] == len(primer_cache.PROMPT) + step
        assert numbers["computed_with"] == (1 if step else len(primer_cache.PROMPT))


def test_work_grows_with_the_square_without_a_cache_and_in_proportion_with_one():
    # From a one-token prompt and while weights outweigh attention, doubling gives 4 and 2 (within 3 %).
    short, long = (primer_cache.work_growth(n, 1).numbers for n in (256, 512))
    assert long["tflop_without"] / short["tflop_without"] == pytest.approx(4, rel=0.03)
    assert long["tflop_with"] / short["tflop_with"] == pytest.approx(2, rel=0.03)


def test_cached_elements_of_each_attention_kind():
    # 8 query heads of 128: 2 * 8 * 128; 2 groups: 2 * 2 * 128; 2 * 128; DeepSeek-V2's latent 512 + 64.
    kinds = ("MHA", "GQA", "MQA", "MLA")
    elements = [primer_cache.shared_heads(kind, 2).numbers["elements"] for kind in kinds]
    assert elements == [2048, 512, 256, 576]


# Primer 2

def test_nothing_idles_with_continuous_batching_and_the_whole_run_is_shorter():
    for slots in (2, 3, 4):
        numbers = primer_batch.batch_steps(primer_batch.LAST_FRAME, slots, DEFAULT_LONGEST).numbers
        assert numbers["continuous_end_ms"] < numbers["static_end_ms"]
        assert numbers["done_static"] == numbers["done_continuous"] == 6


def test_the_page_tells_the_truth_about_request_a():
    # "A has a poor TPOT, since three newcomers' prompts stall it": B's 30, C's 40 and D's 60 ms.
    a, b, c, d, *_ = serve(primer_batch._requests(), slots=3, scheduling="continuous")
    stalls = sum(span.end_ms - span.start_ms for span in a.spans if span.kind == "stall")
    assert stalls == sum(one.request.prompt_tokens for one in (b, c, d))
    assert a.ttft_ms == min(one.ttft_ms for one in (a, b, c, d))
    assert a.tpot_ms == max(one.tpot_ms for one in (a, b, c, d))


def test_goodput_never_exceeds_throughput():
    for scheduling in SCHEDULING:
        numbers = primer_batch.what_users_feel(400, 50, "A", scheduling).numbers
        assert numbers["goodput_per_s"] <= numbers["throughput_per_s"]


def test_the_wall_is_where_memory_ends():
    # L7.slots.12596: floor(12,596 / 512) = 24 requests of 512 tokens of OPT-13B on an A100-40GB.
    assert primer_batch.decode_wall(512, "opt-13b").numbers["held"] == 12596 // 512


# Primer 3

def test_the_program_tours_all_four_ideas():
    # 4 frames. First touches: A's pages 0, 1, 2, 3. B's write copies page 1. Five pages, four frames: page 0,
    # unused since step 3, goes out at step 9. B reads it at step 10: it comes back, and B's page 1 goes out.
    last = primer_memory.paging_steps(10, 4).numbers
    assert (last["page_faults"], last["copies"], last["swaps"]) == (4 + 1 + 1, 1, 2 + 1)
    assert primer_memory.paging_steps(10, 5).numbers["swaps"] == 0


def test_a_lone_owner_writes_in_place():
    before, after = (primer_memory.paging_steps(step, 4).numbers for step in (6, 7))
    assert before == after


def test_translation_in_the_picture_is_a_sum():
    # Address 21 with pages of 16 bytes: page 1, offset 5; the rest is one multiplication.
    numbers = primer_memory.translate_address(21, 16).numbers
    assert numbers["offset"] == 5 and numbers["entries"] == 4
    assert numbers["physical"] == primer_memory._page_table(16)[1] * 16 + 5


# Exercises: every stored draw, answered again from its own words

def numbers_in(text):
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", text)]


def rows_again(n):
    prompt, output = int(n[0]), int(n[1])
    return sum(range(prompt, prompt + output))


def goodput_again(n):
    seconds, _, *pairs, ttft_slo, tpot_slo = n
    return sum(ttft <= ttft_slo and tpot <= tpot_slo for ttft, tpot in zip(pairs[::2], pairs[1::2])) / seconds


BY_HAND = {
    "primer_cache.ready_1": rows_again,
    "primer_cache.ready_2": lambda n: 2 * n[1] * n[2],
    "primer_cache.ready_3": lambda n: next(g for g in range(1, 100) if g * 2 * n[2] > n[0] + n[1]),
    "primer_batch.ready_1": lambda n: sum(max(n[:4]) - x for x in n[:4]),
    "primer_batch.ready_2": lambda n: (n[6] - n[2]) / 4,
    "primer_batch.ready_3": goodput_again,
    "primer_memory.ready_1": lambda n: n[2 * int(n[9] // n[0]) + 2] * n[0] + n[9] % n[0],
    "primer_memory.ready_2": lambda n: n[0] + n[1] + (1 - n[3] / 100) * n[2] * n[1],
    "primer_memory.ready_3": lambda n: n[0] + (n[2] - 1) * (n[5] + 1),
}


@pytest.mark.parametrize("item", CHECKS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_follows_from_the_question(item, seed):
    problem = EXERCISES[item].draw(seed)
    assert problem.answer == pytest.approx(BY_HAND[item](numbers_in(problem.question)), rel=1e-9)
    assert check_answer(problem, repr(problem.answer)).right


@pytest.mark.parametrize("item", CHECKS)
def test_every_slip_is_recognised_and_no_two_seeds_are_alike(item):
    draws = [EXERCISES[item].draw(seed) for seed in SEEDS]
    assert len({draw.question for draw in draws}) > len(draws) / 2
    for draw in draws:
        assert not isinstance(draw, Search)
        slips = draw.to_dict()["slips"]
        assert slips
        for slip in slips:
            verdict = check_answer(draw, repr(slip["value"]))
            assert not verdict.right and verdict.reply in {s["reply"] for s in slips}
