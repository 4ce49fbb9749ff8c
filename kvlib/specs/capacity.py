"""How many tokens of KV fit beside the weights?"""

import math

from kvlib.errors import ConfigError
from kvlib.specs.checks import share, whole
from kvlib.specs.hardware import GpuSpec
from kvlib.specs.models import ModelSpec

# The rest is for activations and workspace. Lecture 7 takes 0.9 (oracle L7.slots.12596), as vLLM's default
# `gpu_memory_utilization` was for years; its documentation of 2026 says 0.92.
MEMORY_SHARE = 0.9


def kv_budget_bytes(
    model: ModelSpec, gpu: GpuSpec, num_gpus: int = 1, memory_share: float = MEMORY_SHARE
) -> float:
    """Bytes left for KV on one of `num_gpus` GPUs that share the weights by tensor parallelism (0 if none).

    Raises
    ------
    ConfigError
        For a memory share that is not in (0, 1], or a model whose weight bytes are not known.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> round(kv_budget_bytes(get_model("opt-13b"), get_gpu("a100-40gb")) / 1e9, 2)
    10.32
    """
    share("memory_share", memory_share)
    model.require("weight_bytes")
    return max(0.0, memory_share * gpu.memory_bytes - model.weight_bytes / whole("num_gpus", num_gpus))


def kv_slots(
    model: ModelSpec, gpu: GpuSpec, kv_dtype="bf16", num_gpus: int = 1, memory_share: float = MEMORY_SHARE
) -> int:
    """Token slots that fit: floor((0.9 * memory - weights) / KV bytes per token).

    Each of `num_gpus` GPUs holds its share of the weights and of the KV of every token. A slot is sized as
    while every layer grows; for windowed models ``KvShape.max_tokens`` says how long one sequence can get.

    Source: oracle L7.slots.12596.

    Raises
    ------
    ConfigError
        As `kv_budget_bytes`; also for a recurrent model, which has no slots.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> kv_slots(get_model("opt-13b"), get_gpu("a100-40gb"))
    12596
    """
    slot_bytes = model.shape.per_gpu(num_gpus).kv_bytes_per_token(kv_dtype)
    if slot_bytes == 0:
        raise ConfigError(f"model: got {model.name}, which has no KV per token, expected attention layers")
    return math.floor(kv_budget_bytes(model, gpu, num_gpus, memory_share) / slot_bytes)


def requests_held(
    model: ModelSpec, gpu: GpuSpec, context_tokens: int, kv_dtype="bf16", num_gpus: int = 1,
    memory_share: float = MEMORY_SHARE,
) -> int | None:
    """Sequences of `context_tokens` tokens that fit at once: the memory wall of decode throughput.

    Windows and fixed state count as they are ("ideal" policy); rounding up to blocks is left to the
    allocators of chapter 3. None when a sequence takes no memory at all.

    Raises
    ------
    ConfigError
        As `kv_budget_bytes`.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> requests_held(get_model("opt-13b"), get_gpu("a100-40gb"), 2048)
    6
    """
    each = model.shape.per_gpu(num_gpus).kv_bytes(context_tokens, kv_dtype)
    return None if each == 0 else math.floor(kv_budget_bytes(model, gpu, num_gpus, memory_share) / each)
