"""One published config for each way a family says how much it caches (tests/data/hf_families.json)."""

from pathlib import Path

import pytest

from kvlib.specs import KvShape, ModelSpec
from kvlib.specs.hf_file import parse_config

ROWS = parse_config((Path(__file__).parents[1] / "data" / "hf_families.json").read_text(encoding="utf-8"))[
    "models"
]
CONFIGS = {row["model"]: row["config"] for row in ROWS}


def _config(model_type, layers=None, hidden=None, heads=None, kv=None, **more):
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
    }
    given = {name: size for name, size in sizes.items() if size is not None}
    return {"model_type": model_type, **given, **more}


@pytest.mark.parametrize("row", ROWS, ids=CONFIGS)
def test_bytes_per_token(row):
    shape, expected = KvShape.from_hf_config(row["config"]), row["kv_bytes_per_token_bf16"]
    assert shape.kv_bytes_per_token() == expected
    assert shape.kv_bytes(0) == shape.state_bytes
    assert shape.kv_bytes(2) - shape.kv_bytes(1) == expected


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if "text_config" in config])
def test_a_vision_tower_with_decoy_values_changes_nothing(name):  # case B06
    decoy = {
        "num_attention_heads": 999,
        "num_key_value_heads": 999,
        "num_hidden_layers": 999,
        "head_dim": 999,
    }
    with_decoy = CONFIGS[name] | {"vision_config": decoy}
    assert KvShape.from_hf_config(with_decoy) == KvShape.from_hf_config(CONFIGS[name])


def test_a_nameless_wrapper_is_read_when_its_language_model_is_named():  # case B06: two levels down
    inner = {"thinker_config": {"text_config": _config("qwen2", 28, 3584, 28, 4)}}
    assert KvShape.from_hf_config(inner).kv_bytes_per_token() == 28 * 2 * 4 * 128 * 2


def test_dense_granite_keeps_its_mamba_fields_unused():
    config = CONFIGS["Granite-4-H-Small"] | {"layer_types": ["attention"] * 40}
    assert KvShape.from_hf_config(config).state_bytes == 0


# Fixed state: elements of each tensor (shapes in hf_states.py), 2 bytes each, 4 where float32 is asked for.
@pytest.mark.parametrize(
    "name, state_bytes",
    [
        ("Whisper-tiny", 4 * 2 * 6 * 64 * 1500 * 2),  # 9,216,000: case B21
        ("Jamba", 28 * 8192 * (4 + 16) * 2),  # 28 of 32 layers; conv 4, state 16
        ("Mamba-130M", 24 * 1536 * (4 + 16) * 2),
        ("Mamba-Codestral-7B", 64 * (4 * (8192 + 2 * 8 * 128) + 128 * 64 * 128) * 2),
        (
            "Qwen3.5-27B",
            48 * (4 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4),
        ),  # float32 recurrent state
        ("LFM2-1.2B", 10 * 2048 * 3 * 2),
        ("Kimi-Linear", 20 * (4 * 3 * 32 * 128 + 32 * 128 * 128) * 2),
        ("MiniMax-Text-01", 70 * 64 * 128 * 128 * 2),
        ("RecurrentGemma-2B", 18 * 2560 * (3 * 2 + 4)),  # conv in bf16, recurrence in float32
        ("GLM-5", 0),
        ("BART-large", 0),
    ],
)
def test_state_bytes(name, state_bytes):
    assert KvShape.from_hf_config(CONFIGS[name]).state_bytes == state_bytes


def test_cross_attention_of_unknown_length_is_a_separate_line():
    assert (
        KvShape.from_hf_config(CONFIGS["BART-large"]).cross_bytes_per_encoder_token() == 12 * 2 * 16 * 64 * 2
    )
    assert (
        KvShape.from_hf_config(CONFIGS["Llama-3.2-11B-Vision"]).cross_bytes_per_encoder_token()
        == 8 * 2 * 8 * 128 * 2
    )
    assert KvShape.from_hf_config(CONFIGS["Whisper-tiny"]).cross_bytes_per_encoder_token() == 0


def test_indexer_keys_are_a_separate_line():
    glm = CONFIGS["GLM-5"]
    assert KvShape.from_hf_config(glm).index_elements_per_token == 78 * 128
    shared = glm | {"indexer_types": ["full"] * 20 + ["shared"] * 58}
    assert KvShape.from_hf_config(shared).index_elements_per_token == 20 * 128


@pytest.mark.parametrize("shared, layers", [(0, 35), (15, 20), (34, 1)])
def test_layers_that_borrow_a_cache_keep_none(shared, layers):  # case B13, with both edges
    config = _config(
        "gemma3n_text", 35, 2048, 8, 2, head_dim=256, sliding_window=512, num_kv_shared_layers=shared
    )
    assert KvShape.from_hf_config(config).kv_bytes_per_token() == layers * 2 * 2 * 256 * 2


def test_null_kv_heads_mean_all_heads_but_absent_ones_the_class_default():
    given = _config("mistral", 32, 4096, 32, sliding_window=None)
    assert KvShape.from_hf_config(given).kv_bytes_per_token() == 32 * 2 * 8 * 128 * 2  # MistralConfig: 8
    null = given | {"num_key_value_heads": None}
    assert KvShape.from_hf_config(null).kv_bytes_per_token() == 32 * 2 * 32 * 128 * 2


@pytest.mark.parametrize(
    "change, windowed",
    [
        ({}, 0),
        ({"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 4}, 0),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21}, 7),
        ({"use_sliding_window": True, "sliding_window": None}, 0),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 64,
                "layer_types": ["sliding_attention", "full_attention"] * 14,
            },
            14,
        ),
    ],
)
def test_the_window_switch_of_qwen(change, windowed):
    shape = KvShape.from_hf_config(_config("qwen2", 28, 3584, 28, 4) | change)
    assert sum(group.layers for group in shape.groups if group.window) == windowed


def test_a_list_of_layers_and_the_rule_it_came_from_agree():
    listed = ["sliding_attention"] * 3 + ["full_attention"]
    rule = _config("cohere2", 8, 4096, 32, 8, sliding_window=4096, sliding_window_pattern=4)
    assert KvShape.from_hf_config(rule) == KvShape.from_hf_config(rule | {"layer_types": listed * 2})


def test_hybrid_pattern_letters_and_words_agree():
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    letters = _config("nemotron_h", hybrid_override_pattern="M-M*-ME", **sizes)
    words = _config(
        "nemotron_h", layers_block_type=["mamba", "mlp", "mamba", "attention", "mlp", "mamba", "moe"], **sizes
    )
    assert KvShape.from_hf_config(letters) == KvShape.from_hf_config(words)
    assert KvShape.from_hf_config(words).kv_bytes_per_token() == 1 * 2 * 8 * 128 * 2


def test_every_family_in_the_tables_has_a_reader_a_pattern_and_a_recurrence_that_exist():  # case B22
    from kvlib.specs.hf_readers import READERS
    from kvlib.specs.hf_families import ATTENTION_FAMILIES
    from kvlib.specs.hf_families_other import ALIASES, ENCODER_ONLY, FAMILIES, OTHER_FAMILIES, WRAPPERS
    from kvlib.specs.hf_layers import PATTERNS
    from kvlib.specs.hf_states import RECURRENCES

    for name, family in FAMILIES.items():
        assert family.reader in READERS and family.pattern in PATTERNS, name
        assert family.state is None or family.state in RECURRENCES, name
    assert not set(ATTENTION_FAMILIES) & set(OTHER_FAMILIES)
    assert set(ALIASES.values()) <= set(FAMILIES)
    assert {inner for inner in WRAPPERS.values() if inner} <= set(FAMILIES) | set(WRAPPERS)
    assert not ENCODER_ONLY & (set(FAMILIES) | set(WRAPPERS) | set(ALIASES))


# What each file leaves out, by the configuration classes of transformers 5.24.0 (see hf_families).
@pytest.mark.parametrize(
    "config, assumed",
    [
        (_config("llama", 32, 4096, 32, 8), ()),  # head_dim follows from hidden size and heads
        (_config("llama", 32, 4096, 32), ("num_key_value_heads",)),  # absent: one per head
        (_config("llama", 32, 4096, 32) | {"num_key_value_heads": None}, ()),  # null says the same in the file
        ({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64}, ()),  # has no such field
        ({"model_type": "llama", "num_key_value_heads": 8, "head_dim": 64}, ("num_hidden_layers", "num_attention_heads")),
        (_config("mistral", 32, 4096, 32), ("sliding_window", "num_key_value_heads")),
        (_config("mistral", 32, 4096, 32, 8, sliding_window=None), ()),  # null is an answer
        (_config("qwen2", 28, 3584, 28, 4), ("use_sliding_window",)),  # off: its other fields decide nothing
        (_config("qwen3_moe", 48, 2048, 32, 4, head_dim=128), ("use_sliding_window",)),
        (_config("gemma2", 42, 3584, 16, 8, head_dim=256), ("sliding_window",)),  # "every other layer" is a rule
        ({"model_type": "falcon", "num_hidden_layers": 2, "head_dim": 64, "n_head": 4}, ("multi_query",)),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 34, "sliding_window": 1024}},
         ("num_attention_heads", "num_key_value_heads", "head_dim")),
    ],
)  # fmt: skip
def test_fields_whose_class_default_decides_are_named(config, assumed):
    assert set(KvShape.from_hf_config(config).assumed_fields) == set(assumed)


def test_a_window_that_is_switched_off_is_none():
    # Qwen3MoeConfig: use_sliding_window is false unless the file says otherwise, and sliding_window then None
    config = _config("qwen3_moe", 48, 2048, 32, 4, head_dim=128, sliding_window=4096)
    assert KvShape.from_hf_config(config).groups[0].window is None
    assert KvShape.from_hf_config(config | {"use_sliding_window": True}).groups[0].window == 4096


def test_the_weights_of_a_model_name_what_they_assume_too():
    config = _config("llama", 32, 4096, 32, 8, head_dim=128, intermediate_size=14336, vocab_size=128256)
    del config["hidden_size"]  # the cache does not need it, the weights do
    assert KvShape.from_hf_config(config).assumed_fields == ()
    assert ModelSpec.from_hf_config(config).shape.assumed_fields == ("hidden_size",)
