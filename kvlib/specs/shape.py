"""How big is the KV cache of one sequence? The only place that multiplies 2 * L * G * d_h.

A model is a few *groups* of like layers. A layer of a group stores, for each token, `elements_per_head`
numbers for each of its KV heads: 2 * d_h (a key and a value) with ordinary attention, and one latent of
512 + 64 numbers with DeepSeek's MLA, where K and V are one tensor. A layer with a sliding window stops
growing at the window; a recurrent layer keeps a state of fixed size instead of a cache.
"""

import math
from dataclasses import dataclass, field, replace

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole
from kvlib.specs.kv_dtypes import KvDtype
from kvlib.specs.kv_dtypes import kv_dtype as find_dtype

POLICIES = ("ideal", "uniform")


def _heads_per_gpu(field: str, heads: int, tensor_parallel: int) -> int:
    """Heads on one of `tensor_parallel` GPUs: an equal share, or one replicated head if there are too few."""
    if max(heads, tensor_parallel) % min(heads, tensor_parallel):
        raise ConfigError(
            f"tensor_parallel: got {tensor_parallel}, expected a divisor or a multiple of the {heads} {field}"
        )
    return max(1, heads // tensor_parallel)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that cache alike.

    Attributes
    ----------
    layers : int
    kv_heads : int
        KV heads per layer (1 for an MLA latent).
    elements_per_head : int
        Numbers one head caches per token: 2 * head_dim, or the width of the latent.
    window : int or None
        Most tokens a layer needs (sliding window or attention chunk); None for full attention.
    latent : bool
        One compressed tensor instead of K and V (MLA); every tensor-parallel GPU holds all of it.

    Examples
    --------
    >>> group = LayerGroup(layers=24, kv_heads=8, elements_per_head=2 * 128, window=4096)
    >>> group.elements_per_token, group.tokens_held(10_000, "ideal"), group.tokens_held(10_000, "uniform")
    (2048, 4096, 10000)
    """

    layers: int
    kv_heads: int
    elements_per_head: int
    window: int | None = None
    latent: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "elements_per_head"):
            whole(field, getattr(self, field))
        if self.window is not None:
            whole("window", self.window)

    @property
    def elements_per_token(self) -> int:
        """Numbers one layer caches per token."""
        return self.kv_heads * self.elements_per_head

    def tokens_held(self, num_tokens: int, policy: str) -> int:
        """Tokens a layer stores of a sequence of `num_tokens`."""
        if policy == "uniform" or self.window is None:
            return num_tokens
        return min(num_tokens, self.window)

    def per_gpu(self, tensor_parallel: int) -> "LayerGroup":
        """The part of the group that one GPU holds."""
        if self.latent:
            return self
        return replace(self, kv_heads=_heads_per_gpu("KV heads", self.kv_heads, tensor_parallel))


@dataclass(frozen=True)
class StateTensor:
    """A tensor of fixed size that a sequence holds in each of some layers, however long it grows.

    Attributes
    ----------
    name : str
    layers : int
    units : int
        Pieces that tensor parallelism can deal out (heads or groups).
    elements_per_unit : int
    bytes_per_element : int

    Examples
    --------
    >>> StateTensor("ssm", layers=24, units=8, elements_per_unit=1024).num_bytes
    393216
    """

    name: str
    layers: int
    units: int
    elements_per_unit: int
    bytes_per_element: int = 2

    def __post_init__(self) -> None:
        for field in ("layers", "units", "elements_per_unit", "bytes_per_element"):
            whole(f"{self.name}.{field}", getattr(self, field))

    @property
    def num_bytes(self) -> int:
        """Bytes over all layers, for one sequence."""
        return self.layers * self.units * self.elements_per_unit * self.bytes_per_element

    def per_gpu(self, tensor_parallel: int) -> "StateTensor":
        """The part of the tensor that one GPU holds."""
        return replace(self, units=_heads_per_gpu(f"{self.name} units", self.units, tensor_parallel))


def _bytes_per_token(groups: tuple[LayerGroup, ...], dtype: KvDtype) -> int:
    return sum(group.layers * dtype.bytes_for(group.elements_per_token) for group in groups)


@dataclass(frozen=True)
class KvShape:
    """Everything about a model that decides the size of its KV cache.

    Attributes
    ----------
    groups : tuple of LayerGroup
        Empty for a model that is recurrent throughout.
    states : tuple of StateTensor
        Fixed state: recurrent layers, and cross-attention whose length the model itself fixes (Whisper).
    index_elements_per_token : int
        Keys of a sparse-attention indexer (DeepSeek-V3.2), all layers. Engines keep them in a second
        cache with a format of its own, so they are reported here and not counted in `kv_bytes`.
    cross_groups : tuple of LayerGroup
        Cross-attention layers, which cache *encoder* tokens (T5, BART, Llama-3.2-Vision). Paid once a
        sequence; the encoder's length is not in the config, so this is not in `state_bytes` either.
    dtype : str or None
        The dtype the config names for its weights; what ``kv_dtype="auto"`` means.
    assumed_fields : tuple of str
        Fields the config leaves out and whose class defaults decided this shape. A head size that follows
        from others (hidden size / heads) is not assumed. Comparing ignores it.

    Examples
    --------
    >>> llama = KvShape.uniform(layers=32, kv_heads=8, head_dim=128)     # Llama-3-8B
    >>> llama.kv_bytes_per_token("bf16"), llama.kv_bytes_per_token("fp8")
    (131072, 65536)
    >>> llama.kv_bytes(8000), llama.max_tokens(40_000_000_000)
    (1048576000, 305175)
    >>> llama.per_gpu(8).kv_bytes_per_token(), llama.per_gpu(16).kv_bytes_per_token()
    (16384, 16384)
    """

    groups: tuple[LayerGroup, ...]
    states: tuple[StateTensor, ...] = ()
    index_elements_per_token: int = 0
    cross_groups: tuple[LayerGroup, ...] = ()
    dtype: str | None = None
    assumed_fields: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def uniform(cls, *, layers: int, kv_heads: int, head_dim: int, window: int | None = None) -> "KvShape":
        """A model whose layers are all alike: 2 * head_dim numbers per KV head and token.

        Examples
        --------
        >>> KvShape.uniform(layers=40, kv_heads=40, head_dim=128).kv_bytes_per_token()    # OPT-13B
        819200
        """
        return cls((LayerGroup(layers, kv_heads, 2 * whole("head_dim", head_dim), window),))

    @classmethod
    def mla(cls, *, layers: int, kv_lora_rank: int, qk_rope_head_dim: int) -> "KvShape":
        """Multi-head latent attention: one latent and one shared rotary key per token and layer.

        Source: DeepSeek-V2, section 2.1.3 and table 1.

        Examples
        --------
        >>> KvShape.mla(layers=61, kv_lora_rank=512, qk_rope_head_dim=64).kv_bytes_per_token()
        70272
        """
        width = whole("kv_lora_rank", kv_lora_rank) + whole("qk_rope_head_dim", qk_rope_head_dim)
        return cls((LayerGroup(layers, 1, width, latent=True),))

    @classmethod
    def from_hf_config(cls, config) -> "KvShape":
        """Read a Hugging Face config: a mapping, or the path of a ``config.json``.

        Raises
        ------
        ConfigError
            For a file that is not a JSON object, a family that is not known, and a field that is
            missing, impossible or not understood.

        Examples
        --------
        >>> KvShape.from_hf_config({"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
        ...     "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}).kv_bytes_per_token()
        114688
        """
        from kvlib.specs.hf_config import read_shape

        return read_shape(config)

    def kv_bytes_per_token(self, kv_dtype="bf16") -> int:
        """Bytes one more token takes while every layer still grows (before any window is full).

        Parameters
        ----------
        kv_dtype : str or KvDtype
            A name of ``kvlib.specs.kv_dtypes``, or ``"auto"`` for the dtype the config names.
        """
        return _bytes_per_token(self.groups, self._dtype(kv_dtype))

    @property
    def state_bytes(self) -> int:
        """Fixed bytes one sequence holds whatever its length, in the model's own formats.

        Recurrent (convolution and state-space) states, and cross-attention over an encoder output whose
        length the model fixes. 2 bytes per element unless the config says float32, whatever the KV dtype.
        """
        return sum(state.num_bytes for state in self.states)

    def cross_bytes_per_encoder_token(self, kv_dtype="bf16") -> int:
        """Cross-attention bytes per encoder token, paid once per sequence; 0 for decoder-only models."""
        return _bytes_per_token(self.cross_groups, self._dtype(kv_dtype))

    def kv_bytes(self, num_tokens: int, kv_dtype="bf16", policy: str = "ideal") -> int:
        """Bytes of one sequence of `num_tokens`, fixed state included.

        Parameters
        ----------
        num_tokens : int
        kv_dtype : str or KvDtype
        policy : {"ideal", "uniform"}
            "ideal": a windowed layer holds min(num_tokens, window), as in an engine that frees what left
            the window. "uniform": every layer holds every token, as in one that sizes all layers alike.
        """
        whole("num_tokens", num_tokens, minimum=0)
        one_of("policy", policy, POLICIES)
        dtype = self._dtype(kv_dtype)
        return self.state_bytes + sum(
            group.layers * dtype.bytes_for(group.elements_per_token) * group.tokens_held(num_tokens, policy)
            for group in self.groups
        )

    def max_tokens(self, budget_bytes: float, kv_dtype="bf16", policy: str = "ideal") -> int | None:
        """The largest n with ``kv_bytes(n) <= budget_bytes``.

        Returns
        -------
        int or None
            None if the sequence never runs out (every layer is windowed or recurrent and all of it fits);
            0 if not even the fixed state fits.
        """
        budget_bytes = math.floor(real("budget_bytes", budget_bytes))
        one_of("policy", policy, POLICIES)
        dtype = self._dtype(kv_dtype)
        windows = sorted({g.window for g in self.groups if g.window is not None}) if policy == "ideal" else []
        start = 0
        # Between two window ends the size is a straight line, so each stretch is one division.
        for end in [*windows, None]:
            left = budget_bytes - self.kv_bytes(start, dtype, policy)
            if left < 0:
                return 0
            slope = self.kv_bytes(start + 1, dtype, policy) - self.kv_bytes(start, dtype, policy)
            if slope == 0:
                return None
            if end is None or left < slope * (end - start):
                return start + left // slope
            start = end

    def per_gpu(self, tensor_parallel: int) -> "KvShape":
        """The shape one GPU of `tensor_parallel` holds.

        KV heads are dealt out; when there are fewer heads than GPUs each head is replicated. An MLA latent
        and indexer keys belong to no head, so every GPU holds all of them.

        Raises
        ------
        ConfigError
            When the heads cannot be dealt out evenly.
        """
        tensor_parallel = whole("tensor_parallel", tensor_parallel)
        return replace(
            self,
            groups=tuple(group.per_gpu(tensor_parallel) for group in self.groups),
            states=tuple(state.per_gpu(tensor_parallel) for state in self.states),
            cross_groups=tuple(group.per_gpu(tensor_parallel) for group in self.cross_groups),
        )

    def _dtype(self, name: "str | KvDtype") -> KvDtype:
        if name != "auto":
            return find_dtype(name)
        if self.dtype is None:
            raise ConfigError("kv_dtype: got 'auto', expected an explicit one as the config names no dtype")
        return find_dtype(self.dtype)
