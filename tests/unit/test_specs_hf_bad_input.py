"""Whatever is dropped in, the answer is a size or a ConfigError that names the field, never a guess."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.specs import KvShape
from kvlib.specs.hf_file import MAX_BYTES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "empty file"),
        (b"  \n", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>Redirecting</html>", "web page"),
        (b"model_type: llama", "invalid JSON"),
        (b'{"model_type": "llama", "hidden_size": 40', "invalid JSON"),
        (b'[{"model_type": "llama"}]', "JSON list"),
        (b"42", "JSON int"),
        (b'{"num_hidden_layers": ' + b"1" * 5000 + b"}", "invalid JSON"),
        (b'{"model_type": "llama", "model_type": "gpt2"}', "model_type: got two values"),
        (b'{"model_type": "llama", "text_config": {"a": 1, "a": 2}}', "a: got two values"),
        (b'{"model_type": "llama", "num_hidden_layers": NaN}', "NaN"),
        (b'{"model_type": "llama", "num_hidden_layers": Infinity}', "Infinity"),
        (b"\x80\x04\x95pickle", "binary file"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (MAX_BYTES + 1), "more than"),
    ],
)
def test_a_file_that_is_not_a_config_is_named_for_what_it_is(tmp_path, content, says):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        KvShape.from_hf_config(path)


def test_a_byte_order_mark_does_not_matter(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert KvShape.from_hf_config(str(path)) == KvShape.from_hf_config(LLAMA)


@pytest.mark.parametrize("config", [None, 7, [LLAMA], "/no/such/config.json", "bad\0path"])
def test_what_is_neither_a_mapping_nor_a_readable_path_is_refused(config):
    with pytest.raises(ConfigError, match="config"):
        KvShape.from_hf_config(config)


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"]
)
@pytest.mark.parametrize("value", ["32", True, 32.0, float("nan"), float("inf"), -1, 0, [32], {"a": 1}])
def test_a_size_of_the_wrong_type_or_range_names_the_field(field, value):
    with pytest.raises(ConfigError, match=f"{field}: got"):
        KvShape.from_hf_config(LLAMA | {field: value})


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads: got 5, expected a divisor of the 32"),
        ({"hidden_size": 4097}, "head_dim: missing"),
        ({"n_layer": 12}, "num_hidden_layers=32, n_layer=12"),
        ({"sliding_window": 4096}, "sliding_window: got 4096, expected it absent"),
        ({"kv_shared_with": 3}, "kv_shared_with"),
        ({"layer_types": ["full_attention"] * 31}, "got 31 layers"),
        ({"layer_types": []}, "empty list"),
        ({"layer_types": "full"}, "layer_types: got 'full', expected a list"),
        ({"layer_types": ["quantum_attention"] * 32}, "quantum_attention"),
        ({"layer_types": [["full_attention"]] * 32}, "full_attention"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window: missing"),
        ({"layer_types": ["linear_attention"] * 32}, "recurrent layers"),
        ({"use_sliding_window": "no"}, "use_sliding_window: got 'no'"),
        ({"text_config": LLAMA}, "text_config: got an object"),
    ],
)
def test_a_field_that_is_impossible_or_not_understood_is_named(change, says):
    with pytest.raises(ConfigError, match=says):
        KvShape.from_hf_config(LLAMA | change)


def test_an_unknown_family_is_refused_and_its_missing_fields_named():
    with pytest.raises(ConfigError, match="'mystery'.*num_key_value_heads, head_dim: missing"):
        KvShape.from_hf_config({"model_type": "mystery", "num_hidden_layers": 2, "num_attention_heads": 2})
    with pytest.raises(ConfigError, match="'mystery'"):
        KvShape.from_hf_config(LLAMA | {"model_type": "mystery", "head_dim": 128})
    with pytest.raises(ConfigError, match="model_type: missing"):
        KvShape.from_hf_config({key: value for key, value in LLAMA.items() if key != "model_type"})


def test_a_family_without_class_defaults_names_the_missing_field():
    with pytest.raises(ConfigError, match="num_attention_heads"):
        KvShape.from_hf_config({"model_type": "internlm2", "hidden_size": 4096, "num_hidden_layers": 32})


def test_an_encoder_has_no_cache_and_is_told_so():  # case B21
    with pytest.raises(ConfigError, match="encoder"):
        KvShape.from_hf_config({"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12})


def test_a_wrapper_without_its_language_model_is_refused():
    with pytest.raises(ConfigError, match="text_config: missing"):
        KvShape.from_hf_config({"model_type": "gemma3", "vision_config": {"num_attention_heads": 16}})
    with pytest.raises(ConfigError, match="several language models"):
        KvShape.from_hf_config({"model_type": "llava", "text_config": LLAMA, "llm_config": LLAMA})


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    model_type=st.sampled_from(
        ["llama", "falcon", "gemma3_text", "deepseek_v3", "nemotron_h", "zamba2", "gpt_neo", "t5"]
    ),
    fields=st.dictionaries(
        st.sampled_from(
            [
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "sliding_window",
                "layer_types",
                "hybrid_override_pattern",
                "multi_query",
                "kv_lora_rank",
                "text_config",
                "num_kv_shared_layers",
                "attention_types",
            ]
        ),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-3, 10**6),
            st.floats(),
            st.text(max_size=3),
            st.lists(st.sampled_from(["full_attention", "sliding_attention", 1, None]), max_size=3),
            st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        ),
    ),
)
def test_any_mixture_of_fields_gives_a_size_or_a_config_error(model_type, fields):
    try:
        shape = KvShape.from_hf_config({"model_type": model_type, **fields})
    except ConfigError:
        return
    assert shape.kv_bytes(1) >= shape.kv_bytes(0) == shape.state_bytes >= 0
