"""What a prefill costs in GPU memory: KV bytes times the time they stay, S × T.

Mooncake's argument for prefill nodes of their own: mixing chunks of a prompt into decode steps stretches T,
and its KV (S) waits in GPU memory all the while. Layer by layer, KV may leave as soon as its layer is done.
"""

import math
from dataclasses import dataclass

from kvlib.cluster.pipeline import cut
from kvlib.cost import mixed_step_s, prefill_s
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec
from kvlib.tiers import layer_times, overlap_layers


@dataclass(frozen=True)
class Occupancy:
    """How long a prefill takes, and the byte-seconds of GPU memory it takes up."""

    prefill_s: float
    byte_s: float


def chunked_beside_decodes(
    model: ModelSpec, gpu: GpuSpec, num_tokens: int, chunk_tokens: int, decodes: int, context_tokens: int,
    num_gpus: int = 1,
) -> Occupancy:
    """Chunks of the prompt ride along with the decode steps of a coupled instance.

    The slots of a chunk are taken from the start of its step to the end of the prefill. Small chunks stretch
    the time, because every step also reads the weights and the decodes' KV; large ones take their slots early.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> size = (get_model("llama-2-70b"), get_gpu("a800-80gb"), 16_000)
    >>> smaller = chunked_beside_decodes(*size, 512, 32, 4000, num_gpus=8)
    >>> smaller.prefill_s > chunked_beside_decodes(*size, 4096, 32, 4000, num_gpus=8).prefill_s
    True
    """
    contexts = [whole("context_tokens", context_tokens)] * whole("decodes", decodes, minimum=0)
    held_byte_s, step_times = [], []
    for new, cached in cut(num_tokens, chunk_tokens):
        step_s = mixed_step_s(model, gpu, [(new, cached)], contexts, num_gpus=num_gpus)
        step_times.append(step_s)
        held_byte_s.append(model.shape.kv_bytes(cached + new) * step_s)
    return Occupancy(math.fsum(step_times), math.fsum(held_byte_s))


def whole_prefill(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, num_gpus: int = 1
) -> Occupancy:
    """One pass on a prefill instance; afterwards the KV leaves in one piece.

    Each layer's KV stays from the end of its computation until everything has left.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> run = whole_prefill(get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("net-800g"), 8192, 8)
    >>> round(run.byte_s / 1e9, 1)                              # GB times seconds
    1.2
    """
    _, compute_s, store_s = layer_times(model, gpu, link, num_tokens, 0, num_gpus=num_gpus)
    layers = model.layers
    until_left_s = [(layers - 1 - layer) * compute_s + layers * store_s for layer in range(layers)]
    return Occupancy(layers * compute_s, model.shape.kv_bytes(num_tokens) / layers * math.fsum(until_left_s))


def layer_wise(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, num_gpus: int = 1
) -> Occupancy:
    """One pass on a prefill instance; each layer's KV leaves while the next ones compute.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> size = (get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("net-800g"), 16_000, 8)
    >>> whole_prefill(*size).byte_s / layer_wise(*size).byte_s > 10
    True
    """
    load_s, compute_s, store_s = layer_times(model, gpu, link, num_tokens, 0, num_gpus=num_gpus)
    run = overlap_layers(*([time_s] * model.layers for time_s in (load_s, compute_s, store_s)))
    stays_s = [store.end_s - compute.end_s for compute, store in zip(run.computes, run.stores)]
    per_layer = model.shape.kv_bytes(num_tokens) / model.layers
    return Occupancy(prefill_s(model, gpu, num_tokens, num_gpus=num_gpus), per_layer * math.fsum(stays_s))
