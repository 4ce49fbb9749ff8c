"""How big is the state of a recurrent layer? One function per family of recurrences.

Shapes are those of the state tensors in Hugging Face transformers 5.24.0: a convolution keeps as many columns
as its kernel is wide (engines that keep one fewer need a little less). Elements are 2 bytes, or 4 in the
recurrent state when the config asks for float32 there.
"""

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of
from kvlib.specs.hf_fields import Fields
from kvlib.specs.shape import StateTensor


def states(name: str, fields: Fields, layers: int) -> tuple[StateTensor, ...]:
    """The fixed state of `layers` recurrent layers, by the recurrence's name in the families table.

    Examples
    --------
    >>> fields = Fields("lfm2", {"hidden_size": 2048, "conv_L_cache": 3}, {}, {})
    >>> sum(state.num_bytes for state in states("short_conv", fields, 10))
    122880
    """
    return tuple(RECURRENCES[name](fields, layers))


def _recurrent_bytes(fields: Fields) -> int:
    """Bytes per element of the recurrent state."""
    for name in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        if fields.raw(name) is not None:
            dtype = fields.raw(name)
            known = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
            return known[one_of(name, dtype, known)]
    return 2


def _mamba1(fields: Fields, layers: int):
    """Selective state space (Mamba, arXiv 2312.00752): d_state numbers per channel."""
    channels = fields.size("ssm_expand") * fields.size("hidden")
    fields.ignore(*fields.spellings("ssm_heads"))         # Zamba cuts the channels into heads; as many in all
    yield StateTensor("convolution", layers, channels, fields.size("ssm_conv"))
    yield StateTensor("state space", layers, channels, fields.size("ssm_state"), _recurrent_bytes(fields))


def _mamba2(fields: Fields, layers: int):
    """State-space duality (Mamba-2, arXiv 2405.21060): head_dim * d_state numbers per head."""
    heads = fields.size("ssm_heads")
    fields.ignore("mamba_d_ssm", *fields.spellings("ssm_expand"))
    head_dim = None if fields.value("ssm_head_dim") == "auto" else fields.optional_size("ssm_head_dim")
    if head_dim is None:
        if fields.raw("mamba_d_ssm") is not None:
            width = fields.number("mamba_d_ssm")
        else:
            width = fields.size("ssm_expand") * fields.size("hidden")
        if width % heads:
            raise ConfigError(f"mamba heads: got {heads}, expected a divisor of the width {width}")
        head_dim = width // heads
    groups, state, kernel = (fields.size(name) for name in ("ssm_groups", "ssm_state", "ssm_conv"))
    yield StateTensor("convolution, inputs", layers, heads, head_dim * kernel)
    yield StateTensor("convolution, B and C", layers, groups, 2 * state * kernel)
    yield StateTensor("state space", layers, heads, head_dim * state, _recurrent_bytes(fields))


def _gated_delta(fields: Fields, layers: int):
    """Gated delta rule (arXiv 2412.06464): a key_dim * value_dim matrix per value head."""
    key_heads, value_heads = fields.number("linear_num_key_heads"), fields.number("linear_num_value_heads")
    key_dim, value_dim = fields.number("linear_key_head_dim"), fields.number("linear_value_head_dim")
    kernel = fields.number("linear_conv_kernel_dim")
    yield StateTensor("convolution, queries and keys", layers, key_heads, 2 * key_dim * kernel)
    yield StateTensor("convolution, values", layers, value_heads, value_dim * kernel)
    yield StateTensor("delta rule", layers, value_heads, key_dim * value_dim, _recurrent_bytes(fields))


def _kimi_delta(fields: Fields, layers: int):
    """Kimi delta attention (arXiv 2510.26692): a head_dim * head_dim matrix per head."""
    linear = fields.nested("linear_attn_config")

    def number(inner: str, outer: str) -> int:
        return linear.number(inner) if linear.has(inner) else fields.number(outer)

    heads, head_dim = number("num_heads", "linear_num_heads"), number("head_dim", "linear_head_dim")
    kernel = number("short_conv_kernel_size", "linear_conv_kernel_dim")
    yield StateTensor("convolution", layers, heads, 3 * head_dim * kernel)
    yield StateTensor("delta rule", layers, heads, head_dim * head_dim, _recurrent_bytes(fields))


def _lightning(fields: Fields, layers: int):
    """Lightning attention (arXiv 2401.04658): a head_dim * head_dim matrix per head."""
    heads = fields.size("heads")
    head_dim = fields.optional_size("head_dim") or fields.size("hidden") // heads
    yield StateTensor("lightning", layers, heads, head_dim * head_dim)


def _rg_lru(fields: Fields, layers: int):
    """Real-gated linear recurrent unit (Griffin, arXiv 2402.19427): one float32 number per channel."""
    width = fields.number("lru_width") if fields.has("lru_width") else fields.size("hidden")
    heads = fields.size("heads")
    yield StateTensor("convolution", layers, heads, width // heads * (fields.number("conv1d_width") - 1))
    yield StateTensor("recurrent unit", layers, heads, width // heads, 4)


def _short_conv(fields: Fields, layers: int):
    """Gated short convolution (LFM2): the last few inputs of every channel."""
    yield StateTensor("convolution", layers, fields.size("hidden"), fields.number("conv_L_cache"))


RECURRENCES = {
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gated_delta": _gated_delta,
    "kimi_delta": _kimi_delta,
    "lightning": _lightning,
    "rg_lru": _rg_lru,
    "short_conv": _short_conv,
}
