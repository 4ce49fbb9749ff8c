"""Chapter 7's explorers and exercises: the lecture's oracles, the stored runs, and a reader's own trace."""

import json
import os
from pathlib import Path

import pytest
from shown import numbers

from kvlib.explore import EXERCISES, REGISTRY, Problem, check_answer
from kvlib.figures.prefix_caching_hashing import CACHED, EDITED, look_up, model_runs
from kvlib.figures.prefix_caching_sweeps import (
    cached_tokens,
    hit_curves,
    hit_facts,
    reuse_shares,
    stored_sweeps,
    token_hit_ratio,
)
from kvlib.workloads import conversation_like, prefix_trace
from kvlib.workloads.published import CONVERSATION

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared"))
REAL_TRACE = SHARED / "data" / "mooncake_conversation_trace.jsonl"


# Hit ratio against capacity


def test_every_policy_lies_below_belady_and_belady_below_the_band():
    for kind in stored_sweeps()["kinds"].values():
        ceiling = kind["curves"]["belady"]
        for ratios in kind["curves"].values():
            assert all(ratio <= best for ratio, best in zip(ratios, ceiling))
        # Law L7: a larger LRU never hits less.
        assert sorted(kind["curves"]["lru"]) == kind["curves"]["lru"]
        assert max(ceiling) <= round(kind["facts"]["reusable_share"], 4)


def test_lru_beats_lfu_except_where_the_cache_is_very_small():
    # L7.lru.gt.lfu: LRU ahead from 10,000 blocks on, not at 1,000 (real trace: .0445 against .0811).
    assert (
        numbers("prefix_caching.policies", capacity=10_000)["lru"]
        > numbers("prefix_caching.policies", capacity=10_000)["lfu_kept"]
    )
    assert (
        numbers("prefix_caching.policies", capacity=1_000)["lru"]
        < numbers("prefix_caching.policies", capacity=1_000)["lfu_kept"]
    )
    prediction = REGISTRY["prefix_caching.policies"].predict()
    assert prediction.options[prediction.answer].text.startswith("LFU")


@pytest.mark.parametrize("kind", ["chat", "rag"])
def test_a_sample_of_the_stored_curves_is_recomputed(kind):
    stored = stored_sweeps()
    trace = prefix_trace(
        kind, stored["kinds"][kind]["facts"]["requests"], CONVERSATION.rate, stored["provenance"]["seed"]
    )
    at = stored["capacities"].index(1_000)
    curves = hit_curves(trace, [1_000])
    assert {policy: round(ratios[0], 4) for policy, ratios in curves.items()} == {
        policy: ratios[at] for policy, ratios in stored["kinds"][kind]["curves"].items()
    }
    facts = {
        name: pytest.approx(value, abs=1e-3)
        for name, value in hit_facts(trace).items()
        if not isinstance(value, list)
    }
    assert facts == {
        name: value for name, value in stored["kinds"][kind]["facts"].items() if name != "hottest"
    }


def test_a_sample_of_the_other_stored_runs_is_recomputed():
    stored = stored_sweeps()
    trace = prefix_trace("chat", 600, CONVERSATION.rate, 0, block_size=512)
    row = stored["tokens_saved"]["chat"][stored["block_sizes"].index(512)]
    assert row[-1] == round(token_hit_ratio(trace, None), 4)
    for name, keeps in (("kept", True), ("forgotten", False)):
        again = reuse_shares("rag", 4_000, 0, keeps)
        assert stored["reuse"]["rag"][name] == {source: round(share, 4) for source, share in again.items()}


def test_a_trace_of_our_own_gives_the_statistics_of_its_file(tmp_path):
    trace = conversation_like(40, seed=3)
    lines = [
        json.dumps(
            {
                "timestamp": round(r.arrival_s * 1000),
                "input_length": r.num_input_tokens,
                "output_length": r.num_output_tokens,
                "hash_ids": list(r.block_ids),
            }
        )
        for r in trace.requests
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    found = numbers("prefix_caching.own_trace", trace=str(path))
    facts = hit_facts(trace)
    assert found["knee"] == facts["knee"]
    assert found["reusable_share"] == facts["reusable_share"]
    # Llama-3-8B keeps 131,072 bytes per token, so a 512-token block takes 67,108,864.
    assert found["terabytes"] == pytest.approx(facts["knee"] * 67_108_864 / 1e12)


def test_a_damaged_trace_is_refused_with_its_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0]}\n')
    answer = json.loads(REGISTRY["prefix_caching.own_trace"].json(json.dumps({"trace": str(path)})))
    assert "1" in answer["error"] and "hash_ids" in answer["error"]


@pytest.mark.skipif(not REAL_TRACE.is_file(), reason="the real trace is not in the repository")
def test_the_published_ratios_of_the_real_trace():
    # shared/data/README.md: LRU .0445 and LFU with kept counts .0811 at 1,000 blocks, .3664 without eviction.
    from kvlib.prefix import lru_hit_ratios, replay
    from kvlib.figures.prefix_caching import REAL_AT_1000
    from kvlib.workloads import read_trace

    trace = read_trace(REAL_TRACE)
    lru, endless = lru_hit_ratios(trace, [1_000, None])
    assert (round(lru, 4), round(endless, 4)) == (REAL_AT_1000["lru"], 0.3664)
    assert round(replay(trace, 1_000, "lfu_kept").hit_ratio, 4) == REAL_AT_1000["lfu_kept"]


# What hits are worth


def test_storage_of_the_lecture():
    # Lecture 7, section 8.5: 168 MB per 512-token block of LLaMA-2-70B; 10,000 are 1.68 TB, HBM is 0.64 TB.
    view = REGISTRY["prefix_caching.savings"].view()
    table = {row[0]: row[1] for row in view.table}
    assert round(table["KV of one 512-token block (MB)"]) == 168
    assert round(view.numbers["terabytes"], 2) == 1.68
    assert round(table["memory of 8 GPUs, weights included (TB)"], 2) == 0.64


def test_more_room_saves_more_gpu_time():
    # L7.gpu.time: monotone in capacity.
    times = [
        numbers("prefix_caching.savings", capacity=size)["times"] for size in stored_sweeps()["capacities"]
    ]
    assert times == sorted(times) and times[0] > 1


def test_cached_tokens_leave_one_to_compute():
    trace = conversation_like(60, seed=0)
    for request, cached in zip(trace.requests, cached_tokens(trace, 10_000)):
        assert cached < request.num_input_tokens and cached % 512 == 0


# Hashes


def test_one_edit_changes_its_block_and_all_later_ones():
    # Lecture 7, exercise 10: of five blocks the third is edited; hashes 3, 4 and 5 change.
    words = CACHED.split()
    words[9] = "us"
    blocks, _ = look_up(CACHED, " ".join(words), 4, chained=True)
    assert [block.found for block in blocks] == [True, True, False, False, False]
    # Unchained, the later blocks look the same as before, and none of them is right.
    blocks, _ = look_up(CACHED, " ".join(words), 4, chained=False)
    assert [(block.found, block.right) for block in blocks] == [
        (True, True),
        (True, True),
        (False, False),
        (True, False),
        (True, False),
    ]


def test_first_three_of_four_blocks_are_shared():
    # L7.s8.2: block size 4, a common prefix of 12 to 15 tokens gives three equal hashes.
    blocks, _ = look_up(CACHED, EDITED, 4, chained=True)
    assert [block.found for block in blocks].count(True) == 3


def test_the_last_word_is_always_computed():
    eight = "one two three four five six seven eight"
    blocks, rest = look_up(eight, eight, 4, chained=True)
    assert [block.found for block in blocks] == [True, False] and rest == 0


def test_reader_text_is_escaped_and_an_empty_prompt_refused():
    answer = json.loads(
        REGISTRY["prefix_caching_hashing.prompt"].json(json.dumps({"prompt": "<script> a b c"}))
    )
    assert "<script>" not in answer["picture"]
    assert (
        "no words" in json.loads(REGISTRY["prefix_caching_hashing.prompt"].json('{"prompt": " "}'))["error"]
    )


# Runs of SmolLM2


def test_reuse_on_the_model_changes_no_logit():
    # L7.prefix.1shot: 80 tokens are 5 blocks without remainder; L7.prefix.ex7: 341 tokens hold 21 blocks.
    # L7.prefix.demo2: 0.80 to 0.83 saved with suffixes of 10 to 30 tokens. Law L4: 1e-3 on float32 logits.
    for shots, hit_tokens in (("1-shot", 80), ("5-shot", 336)):
        runs = model_runs()["few_shot"][shots]["requests"]
        assert [run["hit_tokens"] for run in runs] == [0] + [hit_tokens] * 7
        assert all(run["max_difference"] <= 1e-3 and run["same_next_token"] for run in runs)
    assert 0.80 <= numbers("prefix_caching_workloads.few_shot")["saved"] <= 0.83


def test_an_unchained_hash_gives_wrong_logits():
    for run in model_runs()["false_hit"].values():
        assert run["chained"]["max_difference"] <= 1e-3 and run["chained"]["text"] == run["scratch"]["text"]
        assert run["unchained"]["max_difference"] > 0.5 and run["unchained"]["text"] != run["scratch"]["text"]


def test_a_false_hit_is_recomputed_on_the_real_model():
    from kvlib.tensors.backend import get_backend
    from kvlib.tensors.fetch import fetch
    from kvlib.tensors.gguf import GgufFile
    from kvlib.tensors.smollm import decoder_from_gguf, find_weights
    from kvlib.tensors.tokenizer import SmolTokenizer

    fetch()
    make, file = _script("make_prefix_caching.py"), GgufFile(find_weights())
    make.NEW_TOKENS = 0
    model, name = decoder_from_gguf(get_backend("numpy", "float32"), file), "a dog and a bird"
    again = make.false_hit(model, SmolTokenizer(file), make.STORIES[name])
    stored = model_runs()["false_hit"][name]
    assert again["unchained"]["max_difference"] == pytest.approx(
        stored["unchained"]["max_difference"], abs=1e-2
    )
    assert again["scratch"]["words"][0] == stored["scratch"]["words"][0]


def _script(name):
    import importlib.util

    path = Path(__file__).parents[2] / "kvlib" / "figures" / "data" / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Tree, queue, workloads


def test_the_tree_splits_locks_and_evicts():
    found = [numbers("prefix_caching_radix.tree", step=step) for step in range(9)]
    # 11 words; the second prompt shares 8 and adds 3; the third shares 3 and adds 5.
    assert [one["stored"] for one in found[:4]] == [0, 11, 14, 19]
    assert found[2]["found"] == 8 and found[3]["found"] == 3
    # 26 words are stored and 10 come, so of 32 places 4 must be made free: the cheese leaf and a word more.
    assert found[6] == {"stored": 32, "found": 0, "evicted": 4}


def test_order_by_prefix_computes_less_within_its_bound():
    in_order, bounded = (numbers("prefix_caching_queue.order", bound=bound) for bound in ("0", "5"))
    assert bounded["hit_share"] > 2 * in_order["hit_share"]
    # It arrived third, so with a bound of 5 it is at latest the eighth.
    assert (in_order["strangers_place"], bounded["strangers_place"]) == (3, 8)
    assert numbers("prefix_caching_queue.order", bound="none")["strangers_place"] > 8


def test_large_blocks_hurt_chats_more_than_documents():
    # L9.blocksize.hit, by sign: the lecture's own load, of long shared prefixes, loses 5 % from 16 to 512.
    small, large = (numbers("prefix_caching_workloads.block_size", block_size=size) for size in (16, 512))
    assert large["documents"] / small["documents"] > 0.95 > large["chat"] / small["chat"]


def test_cached_answers_matter_to_chats():
    kept, forgotten = (
        numbers("prefix_caching_workloads.reuse", keep_answers=keep)["new"] for keep in (True, False)
    )
    assert kept < 0.1 < forgotten


def test_every_explorer_answers_every_position():
    modules = ("prefix_caching.", "prefix_caching_")
    for name in (name for name in REGISTRY if name.startswith(modules)):
        for states in REGISTRY[name].star().values():
            assert all("error" not in state for state in states), name


# Exercises


def test_exercise_oracles():
    draws = [EXERCISES["prefix_caching_exercises.few_shot_saved"].draw(seed) for seed in range(1, 60)]
    # L7.prefix.ex7: 7 · 336 of 8 · 361 tokens, 81 %.
    known = [
        d
        for d in draws
        if d.question.startswith("8 requests start with the same 341") and "with 20 of" in d.question
    ]
    assert known and all(d.answer == 2352 / 2888 for d in known)


@pytest.mark.parametrize("name", [name for name in EXERCISES if name.startswith("prefix_caching_exercises")])
def test_exercises_accept_their_answer_and_no_slip(name):
    for seed in range(1, 13):
        drawn = EXERCISES[name].draw(seed)
        if isinstance(drawn, Problem):
            assert check_answer(drawn, repr(drawn.answer)).right
            assert not any(
                check_answer(drawn, repr(slip["value"])).right for slip in drawn.to_dict()["slips"]
            )
        else:
            assert drawn.check(drawn.known).right
            assert not drawn.check({c.name: c.default for c in drawn.controls}).right
