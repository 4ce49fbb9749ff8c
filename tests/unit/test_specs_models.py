"""The presets: parameters against published totals, KV sizes against the oracles; configs read as models."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvlib
from kvlib.errors import ConfigError
from kvlib.specs import (
    GPUS,
    MODELS,
    KvShape,
    ModelSpec,
    get_gpu,
    get_model,
    kv_budget_bytes,
    kv_slots,
    requests_held,
)


@pytest.mark.parametrize(
    "name, billions",
    [  # totals of the model cards, in units of 1e9
        ("opt-13b", 12.85),
        ("opt-66b", 65.7),
        ("opt-175b", 174.6),
        ("llama-2-70b", 68.98),
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
        ("mistral-7b", 7.24),
        ("qwen2.5-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("smollm2-135m", 0.1345),
        ("gemma-3-27b", 27.01),
        ("deepseek-v3", 671.0),
        ("gpt-oss-20b", 20.91),
    ],
)
def test_parameters_add_up_to_the_published_total(name, billions):
    # norms, biases and learned positions are left out: well under 1%
    assert get_model(name).total_params / 1e9 == pytest.approx(billions, rel=0.005)


def test_opt_13b_by_the_formula_of_the_oracle():  # L7.slots.12596
    opt = get_model("opt-13b")
    assert opt.total_params == opt.active_params == 12 * 40 * 5120**2 + 50272 * 5120 == 12_840_304_640
    assert opt.weight_bytes == 2 * 12_840_304_640


def test_active_parameters_of_the_mixtures():  # model cards: 37 B of DeepSeek-V3, 3.6 B of gpt-oss-20b
    assert get_model("deepseek-v3").active_params / 1e9 == pytest.approx(37, rel=0.02)
    assert get_model("gpt-oss-20b").active_params / 1e9 == pytest.approx(3.6, rel=0.01)
    assert get_model("gpt-oss-20b").weight_bytes / 2**30 == pytest.approx(
        12.8, rel=0.005
    )  # checkpoint, in GiB


@pytest.mark.parametrize(
    "name, size",
    [
        ("opt-13b", 819200),
        ("llama-2-70b", 327680),
        ("llama-3-8b", 131072),
        ("llama-3-70b", 327680),
        ("mistral-7b", 2 * 65536),
        ("qwen2.5-14b", 196608),
        ("qwen3-32b", 262144),
        ("deepseek-v3", 70272),
        ("gpt-oss-20b", 49152),
        ("gemma-3-27b", 507904),
        ("smollm2-135m", 30 * 2 * 3 * 64 * 2),
        ("opt-66b", 64 * 2 * 9216 * 2),
        ("opt-175b", 96 * 2 * 12288 * 2),
    ],
)
def test_kv_sizes_of_the_presets(name, size):
    assert get_model(name).shape.kv_bytes_per_token() == size


def test_every_preset_has_a_source_and_every_number():
    for model in MODELS.values():
        assert model.source
        model.require(
            "layers",
            "hidden_size",
            "query_heads",
            "qk_head_dim",
            "layer_matmul_params",
            "total_params",
            "weight_bytes",
        )


def test_names_are_found_in_any_case_and_unknown_ones_listed():
    assert get_model("OPT-13B") is get_model("opt-13b")
    for name in ("gpt-5", "", None, 13):
        with pytest.raises(ConfigError, match="opt-13b.*qwen2.5-14b"):
            get_model(name)


def test_kv_slots_of_the_lecture():
    opt, a100 = get_model("opt-13b"), get_gpu("a100-40gb")
    assert kv_slots(opt, a100) == 12_596  # L7.slots.12596
    assert kv_slots(opt, a100) // 2048 == requests_held(opt, a100, 2048) == 6  # L7.slots.max6
    assert kv_slots(opt, a100, "fp8") == (36 * 10**9 - 25_680_609_280) // 409_600


def test_kv_slots_on_several_gpus():
    llama, a800 = get_model("llama-2-70b"), get_gpu("a800-80gb")
    assert kv_budget_bytes(llama, a800) == 0 and kv_slots(llama, a800) == 0
    # each of 8 GPUs: 72e9 - 137.95e9 / 8 bytes, and one of the 8 KV heads: 40,960 B per token
    assert kv_slots(llama, a800, num_gpus=8) == int((72e9 - llama.weight_bytes / 8) // 40_960)
    # 16 GPUs: half the weights each, but the heads are replicated
    assert kv_slots(llama, a800, num_gpus=16) == int((72e9 - llama.weight_bytes / 16) // 40_960)


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan"), "0.9", True])
def test_memory_share_is_checked(share):
    with pytest.raises(ConfigError, match="memory_share"):
        kv_slots(get_model("opt-13b"), GPUS["a100-40gb"], memory_share=share)


@pytest.mark.parametrize(
    "name, config",
    [
        (
            "opt-13b",
            {
                "model_type": "opt",
                "hidden_size": 5120,
                "num_hidden_layers": 40,
                "num_attention_heads": 40,
                "ffn_dim": 20480,
                "vocab_size": 50272,
            },
        ),
        (
            "qwen2.5-14b",
            {
                "model_type": "qwen2",
                "hidden_size": 5120,
                "num_hidden_layers": 48,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "intermediate_size": 13824,
                "vocab_size": 152064,
                "tie_word_embeddings": False,
            },
        ),
        (
            "smollm2-135m",
            {
                "model_type": "llama",
                "hidden_size": 576,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "intermediate_size": 1536,
                "vocab_size": 49152,
                "tie_word_embeddings": True,
            },
        ),
        (
            "gemma-3-27b",
            {
                "model_type": "gemma3",
                "text_config": {
                    "model_type": "gemma3_text",
                    "hidden_size": 5376,
                    "num_hidden_layers": 62,
                    "num_attention_heads": 32,
                    "num_key_value_heads": 16,
                    "head_dim": 128,
                    "sliding_window": 1024,
                    "intermediate_size": 21504,
                    "vocab_size": 262208,
                },
            },
        ),
    ],
)
def test_a_config_gives_the_same_numbers_as_the_preset(name, config):
    preset, read = get_model(name), ModelSpec.from_hf_config(config, name)
    for field in (
        "layers",
        "hidden_size",
        "query_heads",
        "qk_head_dim",
        "layer_matmul_params",
        "lm_head_params",
        "total_params",
        "weight_bytes",
    ):
        assert getattr(read, field) == getattr(preset, field), field
    assert read.shape.kv_bytes(5000) == preset.shape.kv_bytes(5000)


def test_falcons_single_kv_head_is_in_the_count():
    config = {
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "num_kv_heads": 71,
        "multi_query": True,
        "vocab_size": 65024,
    }
    # a layer has 2 * 4544 * 64 * (71 + 1) attention weights and 2 * 4544 * 4 * 4544 of MLP; published: 6.92 B
    assert ModelSpec.from_hf_config(config).total_params / 1e9 == pytest.approx(6.92, rel=0.002)


def test_what_cannot_be_counted_is_none_and_refused_when_needed():
    mixture = ModelSpec.from_hf_config(
        {"model_type": "mixtral", "vocab_size": 32000, "intermediate_size": 14336}
    )
    assert mixture.shape.kv_bytes_per_token() == 131072 and mixture.total_params is None
    unsized = ModelSpec.from_hf_config({"model_type": "llama"})
    assert unsized.active_params is None
    for model in (mixture, unsized):
        with pytest.raises(ConfigError, match="weight_bytes: not known"):
            kv_slots(model, get_gpu("h200"))


def test_recurrent_models_have_no_slots():
    mamba = ModelSpec("m", KvShape(()), "made up", weight_bytes=1.0)
    with pytest.raises(ConfigError, match="has no KV per token"):
        kv_slots(mamba, get_gpu("h200"))
    assert requests_held(mamba, get_gpu("h200"), 1000) is None


def test_importing_specs_pulls_in_no_config_reader_and_no_heavy_package():
    code = (
        "import sys, kvlib.specs, kvlib.cost; "
        "print(sorted(m for m in sys.modules if '.hf_' in m or m in ('numpy', 'json')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_data_file_of_the_package_is_json_without_duplicate_keys():  # case B22
    def unique(pairs):
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    for path in Path(kvlib.__file__).parent.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
