"""The question index: every state exists, every number is the explorer's own, and the inputs named move it most."""

from __future__ import annotations

import math

import pytest

from kvlib.explore import REGISTRY
from kvlib.figures.question_texts import TEXTS
from kvlib.figures.questions import QUESTIONS, Question, answer, swing


@pytest.fixture(scope="module")
def answers():
    return {question.id: answer(question) for question in QUESTIONS.values()}


def test_every_question_has_its_words():
    assert sorted(QUESTIONS) == sorted(TEXTS)
    for texts in TEXTS.values():
        assert texts.question.endswith("?") and texts.vllm and texts.sglang and texts.log


def test_every_link_is_a_known_explorer_with_valid_parameters():
    for question in QUESTIONS.values():
        assert question.link.startswith(f"#kv={question.explorer_id}")
        assert "error" not in REGISTRY[question.explorer_id].state(question.params)


def test_every_answer_is_a_number_and_has_two_inputs_that_move_it(answers):
    for found in answers.values():
        assert math.isfinite(found.value)
        assert len(found.swings) == 2
        assert found.swings[0].width >= found.swings[1].width > 0
        assert found.swings[0].low <= found.value <= found.swings[0].high


def test_no_other_input_moves_the_answer_further(answers):
    for found in answers.values():
        question = found.question
        named = {s.control.name for s in found.swings}
        for control in REGISTRY[question.explorer_id].controls:
            if control.positions is not None and control.name not in named and control.name not in question.held:
                assert swing(question, control).width <= found.swings[1].width, (question.id, control.name)


def test_a_swing_is_the_spread_over_the_positions():
    """Blocks of 1 waste nothing, and the largest block on offer wastes most: the ends of the slider."""
    control = REGISTRY["fragmentation.tail"].controls[0]
    found = swing(QUESTIONS["block_size"], control)
    assert (found.low, found.low_at, found.high_at) == (0, control.positions[0], control.positions[-1])
    assert found.sentence.startswith("Block size: from 0 at 1 token")


def test_positions_that_are_refused_are_left_out():
    """A model with 8 KV heads has no rule for 3 GPUs; the explorer refuses some pairs of model and GPU count."""
    question = Question("held", "kv_cache.tensor_parallel", lambda n: n["per_gpu"], "bytes", {"num_gpus": 32})
    explorer = REGISTRY["kv_cache.tensor_parallel"]
    refused = [p for p in explorer.controls[1].positions if "error" in explorer.state({"num_gpus": 32, "model": p})]
    found = swing(question, explorer.controls[1])
    assert refused and found.low_at not in refused and found.high_at not in refused


def test_the_case_names_what_the_state_holds():
    assert QUESTIONS["offload"].case.startswith("Your link delivers 18 GB/s, Context 8,000 tokens, Model Llama-3-8B")


def test_known_answers(answers):
    """Chapter 9's 32-token page reaches 22 % of PCIe 5; chapter 10's short chat wants 3 of 8 GPUs for prefill."""
    assert round(answers["page_size"].value) == 22  # oracle of lecture 10: layer-first 22 %
    assert answers["nodes"].value == 3
    assert answers["nodes"].swings[0].control.name == "user"
