"""How long Conductor expects a prefill to take: the cost model's formula in whole nanoseconds."""

from kvlib.cost import attention_flops, linear_flops
from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec
from kvlib.specs.models import ModelSpec

PS_PER_S = 10**12


class PrefillTimes:
    """``kvlib.cost.prefill_s`` with its coefficients rounded once to whole picoseconds.

    A transformer's work is regular, so a formula in prompt length and cached length is a good estimate
    (Mooncake fits one offline). Here the estimate is exact: the simulator charges the same formula.

    Raises
    ------
    ConfigError
        For a model with windowed layers, whose attention is not quadratic in the length.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> times = PrefillTimes(get_model("llama-2-70b"), get_gpu("a800-80gb"), num_gpus=8)
    >>> round(times.prefill_ns(8704, 0) / 1e6), round(times.prefill_ns(4352, 4352) / 1e6)       # ms
    (866, 450)
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, num_gpus: int = 1):
        if any(group.window is not None for group in model.shape.groups):
            raise ConfigError(f"model: {model.name} has windowed layers, expected full attention")
        flops_per_s = whole("num_gpus", num_gpus) * gpu.flops_per_s
        self._token_ps = round(PS_PER_S * linear_flops(model, 1) / flops_per_s)
        # Attention of n tokens after c cached ones is n (2 c + n) halves of a query-key pair.
        self._half_pair_ps = round(PS_PER_S * attention_flops(model, 1) / flops_per_s)
        self._fixed_ps = round(PS_PER_S * gpu.fixed_s)

    def prefill_ns(self, new_tokens: int, cached_tokens: int) -> int:
        """Time to prefill ``new_tokens`` behind ``cached_tokens`` cached ones."""
        half_pairs = new_tokens * (2 * cached_tokens + new_tokens)
        return (new_tokens * self._token_ps + half_pairs * self._half_pair_ps + self._fixed_ps) // 1000
