"""Layer-wise overlap: while layer l computes, the KV of layer l + 1 comes in and that of layer l - 1 goes out.

Three things work at the same time, each on one layer after another: the inbound link, the GPU and the outbound
link. A layer computes once its cached KV is there; its new KV leaves once it has been computed. GPU memory is
assumed to have room for what arrives early.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.cost import prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec

# No prompt is longer than this; loading that is still hidden here is called hidden at any length.
LONGEST_TOKENS = 2**24


@dataclass(frozen=True)
class Span:
    """Work on one layer: from `start_s` to `end_s`."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Overlap:
    """A prefill whose loads, computation and stores overlap layer by layer.

    Attributes
    ----------
    loads, computes, stores : tuple of Span
        One span a layer, in order.
    serial_s : float
        The same work one after the other: all loads, then all computation, then all stores.
    """

    loads: tuple[Span, ...]
    computes: tuple[Span, ...]
    stores: tuple[Span, ...]
    serial_s: float

    @property
    def prefill_s(self) -> float:
        """When the last layer has computed: the first token is known, although stores may still run."""
        return self.computes[-1].end_s

    @property
    def end_s(self) -> float:
        """When the last store has ended too."""
        return self.stores[-1].end_s

    @property
    def stall_s(self) -> float:
        """Time the GPU waits for KV before its last layer has computed, the wait for the first layer included."""
        return self.prefill_s - math.fsum(span.end_s - span.start_s for span in self.computes)


def overlap_layers(load_s: Sequence[float], compute_s: Sequence[float], store_s: Sequence[float]) -> Overlap:
    """Overlap the layers of one prefill.

    Parameters
    ----------
    load_s, compute_s, store_s : sequence of float
        Seconds per layer, one entry a layer.

    Raises
    ------
    ConfigError
        For sequences that are empty or of different lengths, or a time that is negative or not finite.

    Source: Mooncake (Qin et al. 2025), section 5.2, "layer-wise prefill"; lecture 7, s9.3.

    Examples
    --------
    >>> run = overlap_layers([0.002] * 80, [0.003] * 80, [0.0] * 80)
    >>> round(1e3 * run.serial_s), round(1e3 * run.prefill_s)       # ms
    (400, 242)
    """
    if not len(load_s) == len(compute_s) == len(store_s) > 0:
        raise ConfigError(
            f"layers: got {len(load_s)} load, {len(compute_s)} compute and {len(store_s)} store times, "
            "expected as many of each, and at least one"
        )
    loads = _one_after_another("load_s", load_s, [0.0] * len(load_s))
    computes = _one_after_another("compute_s", compute_s, [span.end_s for span in loads])
    stores = _one_after_another("store_s", store_s, [span.end_s for span in computes])
    return Overlap(loads, computes, stores, serial_s=math.fsum([*load_s, *compute_s, *store_s]))


def _one_after_another(field: str, durations: Sequence[float], ready_s: Sequence[float]) -> tuple[Span, ...]:
    """Spans of a worker that takes each layer when it is ready and the one before is done."""
    spans, free_s = [], 0.0
    for duration, ready in zip(durations, ready_s):
        start = max(free_s, ready)
        free_s = start + real(field, duration)
        spans.append(Span(start, free_s))
    return tuple(spans)


def layer_times(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, new_tokens: int, cached_tokens: int,
    kv_dtype="bf16", num_gpus: int = 1,
) -> tuple[float, float, float]:
    """Seconds per layer to load the cached KV, to compute the new tokens and to store their KV.

    Every layer gets an equal share, the LM head included. Each direction of the link has its full rate, and the
    whole load counts as one copy: what many small copies cost is the subject of chapter 9.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> times = layer_times(
    ...     get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("nvme-4x6gb"), 4352, 4352, num_gpus=8)
    >>> [round(1e3 * t, 2) for t in times]                          # ms
    [0.74, 5.63, 0.74]
    """
    whole("new_tokens", new_tokens, minimum=0)
    whole("cached_tokens", cached_tokens, minimum=0)
    load = transfer_s(_kv_bytes(model, cached_tokens, kv_dtype), link)
    compute = prefill_s(model, gpu, new_tokens, cached_tokens, num_gpus)
    store = transfer_s(_kv_bytes(model, new_tokens, kv_dtype), link)
    return load / model.layers, compute / model.layers, store / model.layers


def _kv_bytes(model: ModelSpec, num_tokens: int, kv_dtype) -> int:
    return model.shape.kv_bytes(num_tokens, kv_dtype) if num_tokens else 0


def overlapped_prefill(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, new_tokens: int, cached_tokens: int,
    kv_dtype="bf16", num_gpus: int = 1,
) -> Overlap:
    """Prefill `new_tokens` while the KV of `cached_tokens` comes in over `link`, layer by layer.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> run = overlapped_prefill(
    ...     get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("nvme-4x6gb"), 4352, 4352, num_gpus=8)
    >>> round(1e3 * run.prefill_s)                                  # ms; lecture 7 prints 454
    451
    """
    times = layer_times(model, gpu, link, new_tokens, cached_tokens, kv_dtype, num_gpus)
    return overlap_layers(*([per_layer] * model.layers for per_layer in times))


def hidden_up_to(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, new_tokens: int, kv_dtype="bf16", num_gpus: int = 1
) -> int | None:
    """The most cached tokens whose loading hides behind the computation of `new_tokens`.

    Up to there a layer loads no longer than it computes, so only the first layer is waited for. Loading grows
    with every cached token, and so does attention over it; whichever grows faster wins once and for all, so one
    bisection finds the crossing.

    Returns
    -------
    int or None
        None when loading hides at any length.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> model, gpu = get_model("llama-3-8b"), get_gpu("h100-80gb")
    >>> [hidden_up_to(model, gpu, get_link(name), 256) for name in ("pcie5-x16", "net-3g")]
    [2231, 12]
    """
    whole("new_tokens", new_tokens)

    def hides(cached_tokens: int) -> bool:
        load, compute, _ = layer_times(model, gpu, link, new_tokens, cached_tokens, kv_dtype, num_gpus)
        return load <= compute

    if hides(LONGEST_TOKENS):
        return None
    hidden, exposed = 0, LONGEST_TOKENS
    while exposed - hidden > 1:
        middle = (hidden + exposed) // 2
        hidden, exposed = (middle, exposed) if hides(middle) else (hidden, middle)
    return hidden
