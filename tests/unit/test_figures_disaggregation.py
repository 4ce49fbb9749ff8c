"""Chapter 10: what its explorers claim, and its exercises."""

import pytest

from kvlib.cluster import Workload, best_placement
from kvlib.errors import ConfigError
from kvlib.explore import EXERCISES, REGISTRY
from kvlib.figures import disaggregation, disaggregation_placement


def test_the_long_prompt_freezes_everybody_and_chunks_do_not():
    gaps = {
        m: REGISTRY["disaggregation.comb"].view(mode=m).numbers["longest_gap_ms"] for m in disaggregation.MODES
    }
    assert gaps["coupled"] > 5 * gaps["chunked"] > 5 * gaps["disaggregated"]


def test_the_best_split_moves_with_the_workload():
    assert disaggregation.best_split("chat") < 4 < disaggregation.best_split("document")
    asked = REGISTRY["disaggregation.split"].predict()
    assert asked.options[asked.answer].text == "three" and disaggregation.best_split("chat") == 3


def test_transfer_is_less_than_a_step_on_nvlink_and_more_than_the_prefill_on_ethernet():
    fast, slow = (REGISTRY["disaggregation.price"].view(link=link).numbers for link in ("nvlink3", "net-10g"))
    assert fast["transfer_ms"] < fast["step_ms"] and slow["transfer_ms"] > slow["prefill_ms"]


def test_small_chunks_rival_separate_pools():
    served = REGISTRY["disaggregation.served"]
    default = served.view().numbers
    assert default["coupled_percent"] < default["chunked_percent"] < default["separate_percent"]
    small = served.view(chunk_tokens=128, rate=32).numbers
    assert small["chunked_percent"] > small["separate_percent"]


def test_balanced_ratio_of_the_two_workloads():
    # Pedagogy: 20,000 and 3,000 tokens/s: 8,590 / 182 → 7.1 : 1, 161 / 338 → 1 : 14.
    assert (8590 / 20_000) / (182 / 3_000) == pytest.approx(7.1, rel=0.01)
    found = {}
    for seed in range(1, 300):
        problem = EXERCISES["disaggregation_exercises.balanced_ratio"].draw(seed)
        if "20,000 prompt" in problem.question and "3,000 tokens per second" in problem.question:
            found[problem.question.split("A request has ")[1][:9]] = problem.answer
    assert found["8,590 tok"] == pytest.approx(7.1, rel=0.01) and 1 / found["161 token"] == pytest.approx(
        14, rel=0.01,
    )


def test_the_winning_cut_moves_from_tensor_parallelism_to_stages():
    # DistServe, section 3.1: a strict first token wants a fast prefill, a loose one wants many at once.
    cuts = REGISTRY["disaggregation_placement.cuts"]
    strict, loose = (cuts.view(ttft_ms=ms).numbers for ms in (200, 2000))
    assert strict["prefill_tp"] > strict["prefill_pp"] and loose["prefill_tp"] < loose["prefill_pp"]


def test_the_cut_on_top_is_the_librarys_best():
    work = Workload(disaggregation_placement.INPUT_TOKENS, disaggregation_placement.OUTPUT_TOKENS, 0.5, 0.05)
    best = best_placement(disaggregation_placement.small_cluster(), work, shares_node=False)
    assert REGISTRY["disaggregation_placement.cuts"].view().numbers["goodput"] == pytest.approx(best.goodput_per_s)


def test_objectives_that_nothing_meets_are_refused():
    with pytest.raises(ConfigError, match="objectives"):
        disaggregation_placement.best_by_cut(0.001, 0.05, True)
