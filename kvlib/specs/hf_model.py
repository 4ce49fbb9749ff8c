"""From a Hugging Face config to a ModelSpec: the parameters of dense decoders, counted from the config."""

from dataclasses import replace

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.hf_config import family_fields, find_text_config, read_shape
from kvlib.specs.hf_fields import Fields
from kvlib.specs.hf_file import load_config
from kvlib.specs.models import ModelSpec, dense_model

_GATED, _TWO = 3, 2

# Dense families whose layers are attention and one feed-forward block: how many matrices the block has, and
# whether the class ties the LM head to the input embedding when the file does not say.
_DENSE = {
    **dict.fromkeys((
        "arcee", "codegen", "gpt_neox", "gptj", "nemotron", "phi", "persimmon",
    ), (_TWO, False)),
    **dict.fromkeys(("bloom", "falcon", "gpt2", "gpt_bigcode", "mpt", "opt", "starcoder2"), (_TWO, True)),
    **dict.fromkeys((
        "baichuan", "exaone", "exaone4", "glm", "glm4", "granite", "helium", "hunyuan_v1_dense", "internlm",
        "internlm2", "llama", "ministral", "ministral3", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2",
        "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_vl_text", "seed_oss", "stablelm", "xverse",
    ), (_GATED, False)),
    **dict.fromkeys((
        "cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "smollm3",
    ), (_GATED, True)),
}

# Width of the feed-forward block: its names; these families use 4 * hidden size when it is absent or null.
_MLP_NAMES = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_FOUR_TIMES = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gptj", "mpt")


def read_model(config, name: str, bytes_per_weight: float) -> ModelSpec:
    """A ModelSpec from a config; ``ModelSpec.from_hf_config`` is the public name.

    Examples
    --------
    >>> spec = read_model({"model_type": "deepseek_v3"}, "mine", 2.0)
    >>> spec.shape.kv_bytes_per_token(), spec.total_params
    (70272, None)
    """
    config = load_config(config)
    shape = read_shape(config)
    family_name, text, _ = find_text_config(config)
    fields, _ = family_fields(family_name, text)
    source = f"counted from a config of model_type {family_name!r}"
    mlp_size = _mlp_size(fields) if family_name in _DENSE else None
    vocabulary = text.get("vocab_size", config.get("vocab_size"))
    if mlp_size is None or vocabulary is None:
        return ModelSpec(name=name, shape=shape, source=source)
    matrices, tied = _DENSE[family_name]
    heads = fields.size("heads")
    kv_heads, head_dim = shape.groups[0].kv_heads, shape.groups[0].elements_per_head // 2
    layers, hidden_size = fields.size("layers"), fields.size("hidden")
    assumed = tuple(dict.fromkeys((*shape.assumed_fields, *fields.assumed)))
    return dense_model(
        name, layers=layers, hidden_size=hidden_size, query_heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, mlp_size=mlp_size, mlp_matrices=matrices,
        vocabulary=whole("vocab_size", vocabulary), tied=_tied(text, config, tied), source=source,
        shape=replace(shape, assumed_fields=assumed), bytes_per_weight=bytes_per_weight,
    )


def _mlp_size(fields: Fields) -> int | None:
    """Width of the feed-forward block; None where neither the file nor the family tells."""
    for name in _MLP_NAMES:
        if fields.has(name):
            return fields.number(name)
    return 4 * fields.size("hidden") if fields.family_name in _FOUR_TIMES else None


def _tied(text, config, default: bool) -> bool:
    for place in (text, config):
        value = place.get("tie_word_embeddings")
        if value is not None:
            if not isinstance(value, bool):
                raise ConfigError(f"tie_word_embeddings: got {value!r}, expected true or false")
            return value
    return default
