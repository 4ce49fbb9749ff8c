"""How long things take: a roofline with one formula per function, floats in and seconds out.

Two limits and one constant: a GPU computes at most `gpu.flops_per_s`, reads its memory at most at
`gpu.bytes_per_s`, and spends `gpu.fixed_s` on every forward pass. With `num_gpus` > 1 the work is shared by
tensor parallelism with perfect scaling; the all-reduces between GPUs are left out, as in the lectures.
"""

import math
from collections import Counter
from collections.abc import Iterable

from kvlib.specs.checks import real, whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec


def attention_pairs(new_tokens: int, cached_tokens: int = 0, window: int | None = None) -> float:
    """Query-key pairs of `new_tokens` that follow `cached_tokens`: n*c + n^2/2, fewer under a window.

    A token at position x attends to min(x, window) others; this is the area under that curve.

    Examples
    --------
    >>> attention_pairs(1000), attention_pairs(1000, 1000), attention_pairs(1000, 1000, window=100)
    (500000.0, 1500000.0, 100000.0)
    """
    whole("new_tokens", new_tokens, minimum=0)
    whole("cached_tokens", cached_tokens, minimum=0)

    def area(end: int) -> float:
        if window is None or end <= window:
            return end * end / 2
        return window * (end - window / 2)

    return area(cached_tokens + new_tokens) - area(cached_tokens)


def attention_flops(model: ModelSpec, new_tokens: int, cached_tokens: int = 0) -> float:
    """FLOPs of attention: 2 per query-key pair, head and head dimension, for scores and again for values.

    With equal head sizes this is 4 * L * h * d * pairs; MLA has its own two sizes.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> attention_flops(get_model("opt-13b"), 1024) == 4 * 40 * 5120 * 1024**2 / 2
    True
    """
    model.require("query_heads", "qk_head_dim", "v_head_dim")
    per_layer_and_pair = 2 * model.query_heads * (model.qk_head_dim + model.v_head_dim)
    pairs = (g.layers * attention_pairs(new_tokens, cached_tokens, g.window) for g in model.shape.groups)
    return per_layer_and_pair * math.fsum(pairs)


def linear_flops(model: ModelSpec, tokens: int) -> float:
    """FLOPs of everything but attention: 2 * P * tokens, P = (active) layer weights + LM head.

    Raises
    ------
    ConfigError
        For a model whose parameters could not be counted from its config.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> round(linear_flops(get_model("llama-2-70b"), 1) / 1e9, 1)
    137.4
    """
    model.require("layer_matmul_params", "lm_head_params")
    return 2.0 * model.active_params * whole("tokens", tokens, minimum=0)


def prefill_s(
    model: ModelSpec, gpu: GpuSpec, new_tokens: int, cached_tokens: int = 0, num_gpus: int = 1
) -> float:
    """Time to prefill `new_tokens` of one sequence whose first `cached_tokens` are cached already.

    (2 P n + 4 L h d (n c + n^2 / 2)) / (efficiency * peak) + fixed. The square is per sequence: several
    sequences are several calls (or chunks of one `mixed_step_s`), never one call with the sum.
    Source: lecture 7, s6.2 and ex. 8; lecture 9, s1.2.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> round(1e3 * prefill_s(get_model("llama-3-8b"), get_gpu("h100-80gb"), 8000))        # ms
    188
    """
    flops = linear_flops(model, new_tokens) + attention_flops(model, new_tokens, cached_tokens)
    return flops / (whole("num_gpus", num_gpus) * gpu.flops_per_s) + gpu.fixed_s


def recompute_s(model: ModelSpec, gpu: GpuSpec, num_tokens: int, num_gpus: int = 1) -> float:
    """Time to rebuild the KV of `num_tokens` from nothing: a prefill with no cached token.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> round(1e3 * recompute_s(get_model("opt-13b"), get_gpu("a100-40gb"), 1024), 2)     # ms
    143.77
    """
    return prefill_s(model, gpu, num_tokens, 0, num_gpus)


def weights_read_bytes(model: ModelSpec, tokens: int) -> float:
    """Weight bytes a step of `tokens` tokens reads: all of them, once for everybody.

    Each token of a mixture of experts reads its own few experts; without knowing which, this is the upper
    bound min(all weights, tokens * active weights).

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> round(weights_read_bytes(get_model("deepseek-v3"), 1) / 1e9, 1)
    36.6
    """
    model.require("weight_bytes", "layer_matmul_params", "total_params")
    is_sparse = model.active_params + model.lm_head_params < model.total_params
    if not is_sparse:
        return model.weight_bytes
    return min(model.weight_bytes, tokens * model.weight_bytes * model.active_params / model.total_params)


def mixed_step_s(
    model: ModelSpec,
    gpu: GpuSpec,
    chunks: Iterable[tuple[int, int]],
    context_tokens: Iterable[int],
    kv_dtype="bf16",
    num_gpus: int = 1,
) -> float:
    """One step that prefills some chunks and decodes some sequences (chunked prefill, coupled instances).

    The linear layers run once for all tokens: max(weight bytes / bandwidth, 2 P tokens / FLOP rate). Each
    chunk adds its attention FLOPs, each decoding sequence the reading of its KV, the step its fixed time.

    Parameters
    ----------
    chunks : iterable of (new_tokens, cached_tokens)
    context_tokens : iterable of int
        KV length of each decoding sequence.
    kv_dtype : str or KvDtype
    num_gpus : int

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    >>> alone = prefill_s(model, gpu, 512) + decode_step_s(model, gpu, [1000] * 8)
    >>> mixed_step_s(model, gpu, [(512, 0)], [1000] * 8) < alone
    True
    """
    chunks, contexts = list(chunks), list(context_tokens)
    if not chunks and not contexts:
        return 0.0
    whole("num_gpus", num_gpus)
    flops_per_s, bytes_per_s = num_gpus * gpu.flops_per_s, num_gpus * gpu.bytes_per_s
    attention = math.fsum(attention_flops(model, new, cached) for new, cached in chunks) / flops_per_s
    tokens = sum(new for new, _ in chunks) + len(contexts)
    linear = max(weights_read_bytes(model, tokens) / bytes_per_s, linear_flops(model, tokens) / flops_per_s)
    on_one_gpu = model.shape.per_gpu(num_gpus)
    # Sequences of one length are looked up once: an explorer asks for thousands of them.
    kv_bytes = sum(count * on_one_gpu.kv_bytes(n, kv_dtype) for n, count in Counter(contexts).items())
    kv_read = kv_bytes / gpu.bytes_per_s
    return linear + attention + kv_read + gpu.fixed_s


def decode_step_s(
    model: ModelSpec, gpu: GpuSpec, context_tokens: Iterable[int], kv_dtype="bf16", num_gpus: int = 1
) -> float:
    """One decode step: every sequence of the batch gets one token. 0 for an empty batch.

    max(weight bytes / bandwidth, FLOPs / rate) + sum of KV bytes / bandwidth + fixed, FLOPs those of the
    linear layers. The rate is efficiency * peak, as in prefill: so a step without chunks costs exactly this.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    >>> round(decode_step_s(model, gpu, [500] * 16) / decode_step_s(model, gpu, [500]), 1)
    1.2
    """
    return mixed_step_s(model, gpu, (), context_tokens, kv_dtype, num_gpus)


def transfer_s(num_bytes: float, link: LinkSpec, copies: int = 1, sharing: int = 1) -> float:
    """Time to move `num_bytes` over a link: copies * overhead + bytes / effective bandwidth; 0 for 0 bytes.

    Parameters
    ----------
    num_bytes : float
    link : LinkSpec
        `link.effective_bytes_per_s` is the rate; ``LinkSpec("mine", 25e9)`` is a link without losses.
    copies : int
        Separate copies the bytes are cut into; each costs `link.overhead_s`.
    sharing : int
        Transfers on the link at the same time, this one included; each gets an equal share of the rate.

    Examples
    --------
    >>> round(transfer_s(2**30, LinkSpec("400 Gb/s", 50e9)), 5)
    0.02147
    >>> lecture = LinkSpec("PCIe", 25e9, overhead_s=10e-6)      # one block of 32 tokens, one layer, K or V
    >>> round(1e6 * transfer_s(32 * 5120 * 2, lecture), 1)
    23.1
    """
    real("num_bytes", num_bytes)
    whole("copies", copies)
    whole("sharing", sharing)
    if num_bytes == 0:
        return 0.0
    return copies * link.overhead_s + sharing * num_bytes / link.effective_bytes_per_s


def swap_s(model: ModelSpec, link: LinkSpec, num_tokens: int, block_size: int, kv_dtype="bf16") -> float:
    """Time to swap one sequence out (or in) block by block: layers * 2 * blocks copies, K and V apart.

    Whole blocks travel, the empty slots of the last one included. An MLA latent is one tensor, not two.
    Source: lecture 7, s6.2 and ex. 6.

    Examples
    --------
    >>> from kvlib.specs import get_link, get_model
    >>> round(1e3 * swap_s(get_model("opt-13b"), get_link("pcie-lecture7"), 1024, 32), 1)        # ms
    59.2
    """
    blocks = -(-whole("num_tokens", num_tokens, minimum=0) // whole("block_size", block_size))
    tensors = sum(group.layers * (1 if group.latent else 2) for group in model.shape.groups)
    num_bytes = model.shape.kv_bytes(blocks * block_size, kv_dtype, policy="uniform")
    return transfer_s(num_bytes, link, copies=max(1, tensors * blocks))


def break_even_bytes_per_s(
    model: ModelSpec, gpu: GpuSpec, num_tokens: int, kv_dtype="bf16", num_gpus: int = 1
) -> float:
    """Bandwidth at which loading the KV of `num_tokens` takes as long as recomputing it, over all GPUs.

    A faster link should load, a slower one recompute. Source: lecture 9, s1.2.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> model, gpu = get_model("llama-3-8b"), get_gpu("h100-80gb")
    >>> round(break_even_bytes_per_s(model, gpu, 8000) / 1e9, 2)                # GB/s
    5.57
    """
    whole("num_tokens", num_tokens)
    return model.shape.kv_bytes(num_tokens, kv_dtype) / recompute_s(model, gpu, num_tokens, num_gpus)


def decode_tokens_per_s(
    model: ModelSpec, gpu: GpuSpec, requests: int, context_tokens: int, kv_dtype="bf16", num_gpus: int = 1
) -> float:
    """Decode throughput with `requests` sequences of `context_tokens` held at once.

    It rises with the requests held, because they share one reading of the weights; memory says where it
    stops (`requests_held`).

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    >>> [round(decode_tokens_per_s(model, gpu, n, 500)) for n in (1, 8, 24)]
    [56, 408, 1007]
    """
    step_s = decode_step_s(model, gpu, [context_tokens] * whole("requests", requests), kv_dtype, num_gpus)
    return requests / step_s
