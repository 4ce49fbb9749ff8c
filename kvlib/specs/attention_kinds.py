"""What if the same model had another kind of attention? Layers and head width stay, sharing changes."""

from dataclasses import replace

from kvlib.errors import ConfigError
from kvlib.specs.models import ModelSpec
from kvlib.specs.shape import KvShape

KINDS = ("MHA", "GQA", "MQA", "MLA")
# Llama 2 and 3, Qwen and Mistral all settled on eight (Ainslie et al. 2023 try 1 to 32 and pick 8).
GQA_HEADS = 8
# DeepSeek-V2 and V3: a latent of 512 numbers and a rotary key of 64 per token and layer.
MLA_RANK, MLA_ROPE = 512, 64


def with_attention(model: ModelSpec, kind: str) -> ModelSpec:
    """`model` with its KV cache replaced by the one `kind` of attention would need.

    The weights are left as they are, although a model with fewer KV heads has slightly fewer of them,
    so that a comparison moves one thing only.

    Parameters
    ----------
    kind : {"MHA", "GQA", "MQA", "MLA"}
        GQA takes the largest number of KV heads up to 8 that divides the query heads.

    Raises
    ------
    ConfigError
        For another kind, or a model whose query heads could not be counted from its config.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> [with_attention(get_model("llama-3-8b"), kind).shape.kv_bytes_per_token() for kind in KINDS]
    [524288, 131072, 16384, 36864]
    """
    model.require("layers", "query_heads", "v_head_dim")
    if kind == "MLA":
        shape = KvShape.mla(layers=model.layers, kv_lora_rank=MLA_RANK, qk_rope_head_dim=MLA_ROPE)
    else:
        shape = KvShape.uniform(layers=model.layers, kv_heads=_kv_heads(model, kind), head_dim=model.v_head_dim)
    return replace(model, shape=shape)


def _kv_heads(model: ModelSpec, kind: str) -> int:
    if kind == "MHA":
        return model.query_heads
    if kind == "GQA":
        return max(g for g in range(1, GQA_HEADS + 1) if model.query_heads % g == 0)
    if kind == "MQA":
        return 1
    raise ConfigError(f"kind: got {kind!r}, expected one of {', '.join(KINDS)}")
