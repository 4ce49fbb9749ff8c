"""How long one step of the engine takes, in whole picoseconds.

The cost model (:mod:`kvlib.cost`) speaks in floating-point seconds. The engine skips over many equal decode
steps at once and must land exactly where single steps would, so each coefficient is rounded once, here, to
a whole number of picoseconds; from then on time is integer arithmetic. A nanosecond would be too coarse:
reading the KV of one token takes 20 to 700 ns, and rounding that would be off by up to 2 %.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from kvlib.cost import attention_flops, linear_flops, swap_s, weights_read_bytes
from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec, get_link
from kvlib.specs.models import ModelSpec

PS_PER_S = 10**12
DEFAULT_LINK = "pcie-lecture7"


class StepClock:
    """Step times of one model on ``num_gpus`` GPUs: ``kvlib.cost.mixed_step_s`` in whole picoseconds.

    A step runs the linear layers once for all its tokens, adds attention per prefill, the reading of the KV
    of the decoding sequences, and a fixed term. Blocks are swapped over ``link`` before the step, each GPU
    its own share over a link of its own.

    Attributes
    ----------
    kv_ps : int
        Reading the KV of one token.
    half_pair_ps : int
        Prefill attention for half a query-key pair: ``n`` tokens after ``c`` cached ones are
        ``2 n c + n²`` halves.
    fixed_ps : int
        Overhead of one step.
    swap_block_ps : int
        Copying one block to the host or back.

    Raises
    ------
    ConfigError
        For a model with windowed or recurrent layers: the KV it reads is not proportional to the context,
        and the engine's arithmetic needs that.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> clock = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"))
    >>> round(clock.step_ps(prefills=[(1024, 0)]) / 1e9, 2)     # ms; oracle L7.recompute.143.77
    143.77
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        num_gpus: int = 1,
        link: LinkSpec | None = None,
        block_size: int = 16,
    ):
        if any(group.window is not None for group in model.shape.groups) or model.shape.state_bytes:
            raise ConfigError(
                f"model: {model.name} has windowed or recurrent layers, expected full attention"
            )
        flops_per_s = whole("num_gpus", num_gpus) * gpu.flops_per_s
        on_one_gpu = model.shape.per_gpu(num_gpus)
        self.kv_ps = round(PS_PER_S * on_one_gpu.kv_bytes_per_token() / gpu.bytes_per_s)
        self.half_pair_ps = round(PS_PER_S * attention_flops(model, new_tokens=1) / flops_per_s)
        self.fixed_ps = round(PS_PER_S * gpu.fixed_s)
        self._block_size = block_size
        share = replace(model, shape=on_one_gpu)
        self.swap_block_ps = round(
            PS_PER_S * swap_s(share, link or get_link(DEFAULT_LINK), block_size, block_size)
        )

        @lru_cache(maxsize=4096)  # a run meets few different token counts
        def linear_ps(num_tokens: int) -> int:
            reading_s = weights_read_bytes(model, num_tokens) / (num_gpus * gpu.bytes_per_s)
            computing_s = linear_flops(model, num_tokens) / flops_per_s
            return round(PS_PER_S * max(reading_s, computing_s))

        self._linear_ps = linear_ps

    def step_ps(
        self, prefills: Sequence[tuple[int, int]] = (), num_decodes: int = 0, kv_tokens: int = 0
    ) -> int:
        """Duration of one step.

        Parameters
        ----------
        prefills : sequence of (new_tokens, cached_tokens)
        num_decodes : int
            Sequences that get one token each.
        kv_tokens : int
            Tokens of KV these sequences hold together, those of this step included.
        """
        num_tokens = num_decodes
        half_pairs = 0
        for new, cached in prefills:
            num_tokens += new
            half_pairs += new * (2 * cached + new)
        attention_ps = half_pairs * self.half_pair_ps + kv_tokens * self.kv_ps
        return self._linear_ps(num_tokens) + attention_ps + self.fixed_ps

    def swap_ps(self, num_tokens: int) -> int:
        """Copying the blocks of a sequence of ``num_tokens`` to the host, or back."""
        return -(-num_tokens // self._block_size) * self.swap_block_ps

    def steps(self, num_decodes: int, kv_tokens: int) -> "DecodeSteps":
        """The decode steps of an unchanging batch whose first step holds ``kv_tokens`` tokens of KV."""
        return DecodeSteps(self.step_ps((), num_decodes, kv_tokens), kv_tokens, num_decodes, self.kv_ps)


class DecodeSteps:
    """Sums over equal decode steps in closed form: each holds ``num_decodes`` more tokens than the last.

    Step ``j = 0, 1, …`` holds ``K + R j`` tokens and takes ``D + q R j`` (K = ``kv_tokens``, R =
    ``num_decodes``, D = ``first_ps``, q = ``kv_ps``), all of them integers, so these sums equal adding step
    by step.

    Examples
    --------
    >>> steps = DecodeSteps(first_ps=100, kv_tokens=50, num_decodes=5, kv_ps=2)
    >>> steps.elapsed_ps(3) == 100 + 110 + 120
    True
    >>> steps.token_time(3) == 50 * 100 + 55 * 110 + 60 * 120
    True
    >>> steps.steps_until(211, limit=9), steps.steps_until(210, limit=9), steps.steps_until(10**6, limit=9)
    (3, 2, 9)
    """

    def __init__(self, first_ps: int, kv_tokens: int, num_decodes: int, kv_ps: int):
        self.first_ps = first_ps
        self.kv_tokens = kv_tokens
        self.num_decodes = num_decodes
        self.more_ps = kv_ps * num_decodes

    def elapsed_ps(self, steps: int) -> int:
        """Time from the start of step 0 to the start of step ``steps``."""
        return steps * self.first_ps + self.more_ps * (steps * (steps - 1) // 2)

    def token_time(self, steps: int) -> int:
        """Tokens held times duration, added up over the first ``steps`` steps (token-picoseconds)."""
        sum_j = steps * (steps - 1) // 2
        sum_j2 = sum_j * (2 * steps - 1) // 3
        return self.kv_tokens * self.elapsed_ps(steps) + self.num_decodes * (
            self.first_ps * sum_j + self.more_ps * sum_j2
        )

    def steps_until(self, wait_ps: int, limit: int) -> int:
        """The fewest steps, from 1 to ``limit``, that end no earlier than ``wait_ps`` after the start."""
        low, high = 1, limit
        while low < high:
            middle = (low + high) // 2
            if self.elapsed_ps(middle) >= wait_ps:
                high = middle
            else:
                low = middle + 1
        return low
