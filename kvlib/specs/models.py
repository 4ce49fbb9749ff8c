"""The models of the book: published shapes, and the parameter counts that follow from them."""

from dataclasses import dataclass
from types import MappingProxyType

from kvlib.errors import ConfigError
from kvlib.specs.checks import find, real, whole
from kvlib.specs.shape import KvShape, LayerGroup


@dataclass(frozen=True)
class ModelSpec:
    """What the cost model and the planner need to know about one model.

    Attributes
    ----------
    name : str
    shape : KvShape
        Its KV cache.
    source : str
        Where the numbers come from.
    layers, hidden_size, query_heads : int or None
    qk_head_dim, v_head_dim : int or None
        Width of a query (and key) and of a value in one head *as computed in prefill*. They differ in MLA.
    layer_matmul_params : int or None
        Weights one token is multiplied with, over all layers (for a mixture of experts: the active ones).
    lm_head_params : int or None
        vocabulary * hidden size.
    total_params : int or None
        All matrix weights and embeddings; biases, norms and learned positions (well under 1%) are left out.
    weight_bytes : float or None
        Bytes of the weights as served.

    All but the first three are None for a config whose parameters we cannot count; the cost model refuses it.

    Examples
    --------
    >>> opt = get_model("opt-13b")
    >>> opt.total_params, opt.shape.kv_bytes_per_token()
    (12840304640, 819200)
    """

    name: str
    shape: KvShape
    source: str
    layers: int | None = None
    hidden_size: int | None = None
    query_heads: int | None = None
    qk_head_dim: int | None = None
    v_head_dim: int | None = None
    layer_matmul_params: int | None = None
    lm_head_params: int | None = None
    total_params: int | None = None
    weight_bytes: float | None = None

    def __post_init__(self) -> None:
        sizes = (
            "layers", "hidden_size", "query_heads", "qk_head_dim", "v_head_dim", "layer_matmul_params",
            "lm_head_params", "total_params",
        )
        for field in sizes:
            if getattr(self, field) is not None:
                whole(field, getattr(self, field))
        if self.weight_bytes is not None:
            real("weight_bytes", self.weight_bytes, above=True)

    @property
    def active_params(self) -> int | None:
        """Weights one token is multiplied with, the LM head included: P in the cost model."""
        return None if self.layer_matmul_params is None else self.layer_matmul_params + self.lm_head_params

    def require(self, *fields: str) -> None:
        """Raise a ConfigError for the first of these fields that could not be counted from a config."""
        for field in fields:
            if getattr(self, field) is None:
                raise ConfigError(
                    f"{field}: not known for {self.name} ({self.source}), expected a dense decoder; the work of others is "
                    "not counted from a config, so choose a preset"
                )

    @classmethod
    def from_hf_config(cls, config, name: str = "your model", bytes_per_weight: float = 2.0) -> "ModelSpec":
        """A model from a Hugging Face config: a mapping, or the path of a ``config.json``.

        The KV shape is read for every family that ``KvShape.from_hf_config`` knows. Parameters are counted
        only for dense decoders with plain attention; elsewhere they are None, and the cost model says so.

        Parameters
        ----------
        config : mapping or path
        name : str
        bytes_per_weight : float
            2 for bf16 weights, 1 for fp8, about 0.5 for 4-bit.

        Raises
        ------
        ConfigError
            As ``KvShape.from_hf_config``.

        Examples
        --------
        >>> ModelSpec.from_hf_config({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        ...     "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        ...     "vocab_size": 128256}).total_params == get_model("llama-3-8b").total_params
        True
        """
        from kvlib.specs.hf_model import read_model

        return read_model(config, name, real("bytes_per_weight", bytes_per_weight, above=True))


def attention_params(hidden_size: int, query_heads: int, kv_heads: int, head_dim: int) -> int:
    """Weights of one attention layer: query and output projections, and the key and value ones.

    Examples
    --------
    >>> attention_params(5120, 40, 40, 128) == 4 * 5120**2
    True
    """
    return 2 * hidden_size * head_dim * (query_heads + kv_heads)


def dense_model(
    name: str, *, layers: int, hidden_size: int, query_heads: int, kv_heads: int, head_dim: int,
    mlp_size: int, mlp_matrices: int, vocabulary: int, tied: bool, source: str,
    shape: KvShape | None = None, bytes_per_weight: float = 2.0,
) -> ModelSpec:
    """A dense decoder: attention and one feed-forward block (of 2 matrices, or 3 when gated) per layer.

    Parameters
    ----------
    tied : bool
        The input embedding and the LM head are one matrix.
    shape : KvShape, optional
        Where layers cache differently from each other; otherwise every layer caches kv_heads * head_dim.

    Examples
    --------
    >>> dense_model("tiny", layers=2, hidden_size=8, query_heads=2, kv_heads=1, head_dim=4, mlp_size=16,
    ...     mlp_matrices=2, vocabulary=100, tied=True, source="made up").total_params
    1696
    """
    attention = attention_params(hidden_size, query_heads, kv_heads, head_dim)
    per_layer = attention + mlp_matrices * hidden_size * mlp_size
    lm_head = vocabulary * hidden_size
    total = layers * per_layer + (1 if tied else 2) * lm_head
    return ModelSpec(
        name=name,
        shape=shape or KvShape.uniform(layers=layers, kv_heads=kv_heads, head_dim=head_dim),
        layers=layers, hidden_size=hidden_size,
        query_heads=query_heads, qk_head_dim=head_dim, v_head_dim=head_dim,
        layer_matmul_params=layers * per_layer, lm_head_params=lm_head, total_params=total,
        weight_bytes=total * bytes_per_weight, source=source,
    )


def _opt(name: str, layers: int, hidden_size: int, query_heads: int) -> ModelSpec:
    return dense_model(
        name, layers=layers, hidden_size=hidden_size, query_heads=query_heads, kv_heads=query_heads,
        head_dim=128, mlp_size=4 * hidden_size, mlp_matrices=2, vocabulary=50272, tied=True,
        source="OPT (arXiv 2205.01068), table 1; vocabulary padded to 50,272 as in facebook/opt config.json",
    )


def _gated(name: str, source: str, *, tied: bool = False, **sizes) -> ModelSpec:
    return dense_model(name, mlp_matrices=3, tied=tied, source=source, **sizes)


def _deepseek_v3() -> ModelSpec:
    hidden, heads, layers, dense_layers, vocabulary = 7168, 128, 61, 3, 129280
    q_rank, kv_rank, rope, nope, value = 1536, 512, 64, 128, 128
    attention = (
        hidden * q_rank + q_rank * heads * (nope + rope)          # query, down and up
        + hidden * (kv_rank + rope) + kv_rank * heads * (nope + value)   # latent, down and up
        + heads * value * hidden                                  # output
    )
    expert, experts, active_experts, shared_experts = 3 * hidden * 2048, 256, 8, 1
    router = hidden * experts
    dense_mlp = dense_layers * 3 * hidden * 18432
    moe_layers = layers - dense_layers

    def layer_params(experts_counted: int) -> int:
        mixture = router + (experts_counted + shared_experts) * expert
        return layers * attention + dense_mlp + moe_layers * mixture

    lm_head = vocabulary * hidden
    total = layer_params(experts) + 2 * lm_head
    return ModelSpec(
        name="deepseek-v3",
        shape=KvShape.mla(layers=layers, kv_lora_rank=kv_rank, qk_rope_head_dim=rope),
        layers=layers, hidden_size=hidden, query_heads=heads, qk_head_dim=nope + rope, v_head_dim=value,
        layer_matmul_params=layer_params(active_experts), lm_head_params=lm_head, total_params=total,
        weight_bytes=total * 1.0,
        source="DeepSeek-V3 (arXiv 2412.19437), section 4.2, and deepseek-ai/DeepSeek-V3 config.json; "
               "weights in fp8, multi-token-prediction module left out",
    )


def _gpt_oss_20b() -> ModelSpec:
    hidden, heads, kv_heads, head_dim, layers, vocabulary = 2880, 64, 8, 64, 24, 201088
    expert, experts, active_experts = 3 * hidden * 2880, 32, 4
    attention = attention_params(hidden, heads, kv_heads, head_dim)
    router, lm_head = hidden * experts, vocabulary * hidden
    outside_experts = layers * (attention + router) + 2 * lm_head
    mxfp4_bytes = (4 + 8 / 32) / 8       # 4 bits and one 8-bit scale per 32 weights
    window = 128
    return ModelSpec(
        name="gpt-oss-20b",
        shape=KvShape((
            LayerGroup(layers // 2, kv_heads, 2 * head_dim, window),
            LayerGroup(layers // 2, kv_heads, 2 * head_dim),
        )),
        layers=layers, hidden_size=hidden, query_heads=heads, qk_head_dim=head_dim, v_head_dim=head_dim,
        layer_matmul_params=layers * (attention + router + active_experts * expert), lm_head_params=lm_head,
        total_params=outside_experts + layers * experts * expert,
        weight_bytes=2 * outside_experts + mxfp4_bytes * layers * experts * expert,
        source="gpt-oss model card (arXiv 2508.10925), table 1, and openai/gpt-oss-20b config.json; experts "
               "in MXFP4",
    )


_LLAMA3 = "Llama 3 (arXiv 2407.21783), table 3; meta-llama config.json"

MODELS = MappingProxyType({
    model.name: model
    for model in (
        _opt("opt-13b", 40, 5120, 40),
        _opt("opt-66b", 64, 9216, 72),
        _opt("opt-175b", 96, 12288, 96),
        _gated("llama-2-70b", "Llama 2 (arXiv 2307.09288), table 1; meta-llama/Llama-2-70b-hf config.json",
               layers=80, hidden_size=8192, query_heads=64, kv_heads=8, head_dim=128,
               mlp_size=28672, vocabulary=32000),
        _gated("llama-3-8b", _LLAMA3,
               layers=32, hidden_size=4096, query_heads=32, kv_heads=8, head_dim=128,
               mlp_size=14336, vocabulary=128256),
        _gated("llama-3-70b", _LLAMA3,
               layers=80, hidden_size=8192, query_heads=64, kv_heads=8, head_dim=128,
               mlp_size=28672, vocabulary=128256),
        _gated("mistral-7b", "Mistral 7B (arXiv 2310.06825), table 1; full attention, as from v0.2 on",
               layers=32, hidden_size=4096, query_heads=32, kv_heads=8, head_dim=128,
               mlp_size=14336, vocabulary=32000),
        _gated("qwen2.5-14b", "Qwen2.5 (arXiv 2412.15115), table 1; Qwen/Qwen2.5-14B config.json",
               layers=48, hidden_size=5120, query_heads=40, kv_heads=8, head_dim=128,
               mlp_size=13824, vocabulary=152064),
        _gated("qwen3-32b", "Qwen3 (arXiv 2505.09388), table 1; Qwen/Qwen3-32B config.json",
               layers=64, hidden_size=5120, query_heads=64, kv_heads=8, head_dim=128,
               mlp_size=25600, vocabulary=151936),
        _gated("smollm2-135m", "SmolLM2 (arXiv 2502.02737); HuggingFaceTB/SmolLM2-135M config.json",
               layers=30, hidden_size=576, query_heads=9, kv_heads=3, head_dim=64,
               mlp_size=1536, vocabulary=49152, tied=True),
        _gated("gemma-3-27b", "Gemma 3 (arXiv 2503.19786), section 2; google/gemma-3-27b-it config.json",
               layers=62, hidden_size=5376, query_heads=32, kv_heads=16, head_dim=128,
               mlp_size=21504, vocabulary=262208, tied=True,
               # Five layers with a window of 1,024 tokens, then one without: 10 of 62 see everything.
               shape=KvShape((LayerGroup(52, 16, 2 * 128, 1024), LayerGroup(10, 16, 2 * 128)))),
        _deepseek_v3(),
        _gpt_oss_20b(),
    )
})


def get_model(name: str) -> ModelSpec:
    """The model of that name; `MODELS` lists them.

    Raises
    ------
    ConfigError
        Naming the known models.

    Examples
    --------
    >>> get_model("llama-2-70b").shape.kv_bytes_per_token()
    327680
    """
    return find("model", name, MODELS)
