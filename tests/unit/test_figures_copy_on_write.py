"""Chapter 4's explorers and exercises: the lecture's oracles, and the stored family trees."""

import json

import pytest

from kvlib.explore import EXERCISES, REGISTRY, Problem, check_answer
from kvlib.figures import copy_on_write
from kvlib.tensors.sharing import replay


def numbers(name, **params):
    return REGISTRY[f"copy_on_write.{name}"].view(**params).numbers


def test_copies_appear_one_by_one_and_the_last_writer_keeps_the_original():
    # L7.cow.nminus1 with n = 4; 40 tokens end inside a block of 16, 32 do not.
    assert [numbers("four_writers", step=step)["copies"] for step in range(6)] == [0, 0, 1, 2, 3, 3]
    assert numbers("four_writers", step=5, prompt=32)["copies"] == 0


def test_the_prediction_is_computed():
    prediction = REGISTRY["copy_on_write.four_writers"].predict()
    assert prediction.options[prediction.answer].text == "3"


def test_fewer_copies_is_not_fewer_blocks():
    # pedagogy, chapter 4: 96 tokens, no copy and four new blocks; 97 tokens, three and three.
    for prompt, copies, new_blocks in ((96, 0, 4), (97, 3, 3)):
        found = numbers("copies_and_blocks", prompt=prompt)
        assert (found["copies"], found["new_blocks"]) == (copies, new_blocks)


def test_oracle_blocks_of_parallel_sampling():
    # L7.par.blocks: 6 + 3n.
    assert [numbers("sampling", samples=n)["blocks"] for n in (2, 4, 8)] == [12, 18, 30]


def test_oracle_whole_cache_copying_and_the_paper_s_range():
    # L7.beam.copy: 10,176. L7.beam.save: more than 10 times less is copied, saving above 30 % and rising with
    # the width.
    found = [numbers("beam_copying", width=width) for width in (2, 4, 6)]
    assert found[1]["whole"] == 10176
    assert all(one["whole"] > 10 * one["copied_tokens"] for one in found)
    assert 0.3 < found[0]["saving"] < found[1]["saving"] < found[2]["saving"]


def test_stored_trees_come_from_runs_whose_outputs_did_not_change():
    data = copy_on_write.beam_runs()
    assert [run["width"] for run in data["runs"]] == [2, 4, 6]
    for run in data["runs"]:
        assert run["same_outputs"]
        # The run on real tensors never fed its last token, so its tree is one step shorter.
        assert replay(data["prompt_tokens"], run["parents"][:-1], data["block_size"]).copies == run["copied_blocks"]


def test_pinned_prefix():
    # 341 = 21 · 16 + 5 tokens: 21 shared blocks, the pinned partial one, and for each of 8 requests the 25
    # tokens from its copy on,
    # in two blocks: 21 + 1 + 16 = 38. Alone: 8 · ceil(361 / 16) = 184.
    assert copy_on_write.pinned(8, 341, 20, 16) == (38, 184, 8)
    assert copy_on_write.pinned(8, 352, 20, 16)[2] == 0


def test_beam_explorer_ends_where_the_replay_ends():
    found = numbers("beam", step=32)
    run = replay(64, copy_on_write.beam_parents(4), 16)
    assert (found["copies"], found["blocks"]) == (run.copies, run.blocks)


@pytest.mark.parametrize("name", ["sample_blocks", "reference_counts", "whole_copies", "beam_ratio"])
def test_answers_check_and_are_no_slips(name):
    for seed in range(1, 60):
        problem = EXERCISES[f"copy_on_write_exercises.{name}"].draw(seed)
        assert isinstance(problem, Problem) and check_answer(problem, repr(problem.answer)).right
        assert all(slip["value"] != problem.answer for slip in json.loads(json.dumps(problem.to_dict()))["slips"])


def test_reference_counts_by_hand():
    # 7 tokens in blocks of 4: two blocks. B appends one token into the shared half-full block: one copy. So 3
    # of 16 are held.
    problem = EXERCISES["copy_on_write_exercises.reference_counts"].draw(1)
    assert "A of 7 tokens" in problem.question and "appends 1 token," in problem.question
    assert problem.answer == 13


@pytest.mark.parametrize("seed", range(1, 20))
def test_the_search_can_be_won_and_lost(seed):
    search = EXERCISES["copy_on_write_exercises.find_small_saving"].draw(seed)
    assert search.check(search.known).right
    assert not search.check({"prompt": 320, "output": 20}).right
