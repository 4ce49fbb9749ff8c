"""Chapter 1: what its explorers and exercises must say, with where each number comes from."""

from __future__ import annotations

import json

import pytest

from kvlib.explore import EXERCISES, REGISTRY
from kvlib.ledger import LONG_DOCUMENT, SHORT_CHAT, ideal_entry
from kvlib.specs import MODELS, get_model
from kvlib.specs.attention_kinds import KINDS, with_attention


def view(name, **params):
    return REGISTRY[f"kv_cache.{name}"].view(**params)


def test_the_wall_of_opt_13b():
    """Pedagogy, chapter 1, exercise 4: 25 requests of 500 tokens fit (12,596 slots, oracle L7.slots.12596)."""
    assert view("wall").numbers["held"] == 12_596 // 500 == 25


def test_sixteen_sequences_cost_hardly_more_than_one():
    """Pedagogy, chapter 1: a step of 16 sequences takes about 1.2 times as long as a step of one."""
    asked = REGISTRY["kv_cache.wall"].predict()
    assert "1.2" in asked.options[asked.answer].text
    assert "1.2 times" in asked.options[asked.answer].reply


def test_attention_kinds_move_the_wall_and_hardly_the_slope():
    """MQA of a 40-head model caches 1/40 of MHA, so the wall moves 40-fold; the first request is as fast as before."""
    mha, mqa = view("wall", attention="MHA"), view("wall", attention="MQA")
    assert mqa.numbers["held"] // mha.numbers["held"] in {40, 41, 42}
    first = [v.picture["data"][0]["y"][0] for v in (mha, mqa)]
    assert first[1] == pytest.approx(first[0], rel=0.02)


def test_what_does_not_fit_is_refused_with_the_reason():
    for params, words in (({"model": "opt-175b"}, "its weights alone fill"), ({"gpu": "rtx-4090"}, "its weights alone fill")):
        assert words in json.loads(REGISTRY["kv_cache.wall"].json(json.dumps(params)))["error"]


def test_tensor_parallelism_copies_heads():
    """Pedagogy, chapter 1, exercise 2: Llama-3-8B on 16 GPUs, 16,384 bytes on each, twice 131,072 in all."""
    numbers = view("tensor_parallel", num_gpus=16).numbers
    assert numbers == {"per_gpu": 16_384, "summed": 2 * 131_072}


def test_the_latent_is_on_every_gpu():
    """Case B04: DeepSeek-V3 keeps 70,272 bytes per token on every GPU."""
    assert view("tensor_parallel", model="deepseek-v3", num_gpus=8).numbers == {"per_gpu": 70_272, "summed": 8 * 70_272}


def test_fifty_three_tokens_make_four_blocks():
    """Coverage SIZE-4 and PAGE-7: 53 tokens at block size 16 take 4 blocks and leave 11 slots empty."""
    assert view("request_to_blocks").numbers == {"blocks": 4, "empty": 11}


@pytest.mark.parametrize("block_size", [4, 8, 16, 32])
def test_no_more_than_a_block_is_wasted(block_size):
    """Oracle L7.blocks.maxwaste: at most B − 1 slots."""
    for tokens in range(1, 65):
        numbers = view("request_to_blocks", tokens=tokens, block_size=block_size).numbers
        assert 0 <= numbers["empty"] <= block_size - 1
        assert numbers["blocks"] * block_size == tokens + numbers["empty"]


def test_reservation_holds_more_than_tokens_fill():
    for seed in range(1, 9):
        numbers = view("growth", seed=seed).numbers
        assert 0 < numbers["peak"] < numbers["reserved"]


def test_the_log_lines_of_a_hybrid_model_disagree():
    """Case B19: 290,864 tokens beside 33.04 × 32,768 = 1,082,655."""
    made = view("engine_log")
    assert "disagree" in made.title and round(made.numbers["tokens"]) == 1_082_655


def test_the_log_lines_of_a_plain_model_agree():
    """Case B19: 127,626 blocks of 16 are 2,042,016 tokens, 62.32 requests of 32,768."""
    log = "INFO GPU KV cache size: 2,042,016 tokens INFO Maximum concurrency for 32,768 tokens per request: 62.32x"
    assert "agree" in view("engine_log", log=log).title and "disagree" not in view("engine_log", log=log).title


def test_dropped_configs_reach_every_explorer_that_takes_one(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }))
    assert view("size", config=str(path)).numbers["bytes_per_token"] == get_model("llama-3-8b").shape.kv_bytes_per_token()
    for name in ("wall", "attention_kinds", "tensor_parallel"):
        assert view(name, config=str(path)).numbers


def test_what_a_dropped_config_leaves_out_is_named(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "sliding_window": None, "intermediate_size": 14336, "vocab_size": 32000,
    }))
    for name in ("size", "wall", "attention_kinds", "tensor_parallel"):
        assert view(name, config=str(path)).note.endswith("its family is taken: num_hidden_layers."), name
        assert "Not in your file" not in view(name).note


def test_a_missing_file_is_refused():
    assert "no/such" in json.loads(REGISTRY["kv_cache.size"].json('{"config": "no/such/config.json"}'))["error"]


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda m: m.name)
def test_attention_kinds_are_ordered(model):
    sizes = {kind: with_attention(model, kind).shape.kv_bytes_per_token() for kind in KINDS}
    assert sizes["MHA"] >= sizes["GQA"] >= sizes["MQA"]
    assert sizes["MHA"] == model.query_heads * sizes["MQA"]


class TestExercises:
    def draws(self, name):
        return [EXERCISES[f"kv_cache_exercises.{name}"].draw(seed) for seed in range(1, 30)]

    def test_kv_equals_weights(self):
        """Pedagogy, chapter 1, exercise 4: about 63 requests of 500 tokens."""
        assert 63 in {p.answer for p in self.draws("kv_equals_weights")}

    def test_window_ratio(self):
        """Pedagogy, chapter 1, exercise 3: a window of 4,096 at 32,768 tokens, a ratio of 8."""
        ratios = {p.answer for p in self.draws("window_ratio") if "4,096 tokens. A request has 32,768" in p.question}
        assert ratios == {8}

    def test_tensor_parallel_sum(self):
        answers = {p.answer for p in self.draws("tensor_parallel_sum") if "Llama-3-8B" in p.question and "on 16 GPUs" in p.question}
        assert answers <= {2 * 131_072} and answers

    def test_bytes_per_token(self):
        """Oracle L7.kv.opt13b."""
        assert {p.answer for p in self.draws("bytes_per_token") if "OPT-13B" in p.question} == {819_200}


def test_the_ledger_holds_fewer_long_documents_than_short_chats():
    short, long = ideal_entry(SHORT_CHAT), ideal_entry(LONG_DOCUMENT)
    assert short.requests_held > 10 * long.requests_held
    assert short.ttft_s < long.ttft_s
