"""The four steps of one request: reuse KV, prefill the rest, stream KV to the decode instance, decode."""

import math
from dataclasses import dataclass

from kvlib.cost import decode_step_s, prefill_s, transfer_s
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec
from kvlib.tiers import Overlap, Span, overlap_layers


@dataclass(frozen=True)
class RequestSteps:
    """When the steps of one request happen, in seconds from its placement.

    Attributes
    ----------
    layers : Overlap
        Per layer: loading the reused KV, computing the new tokens, and sending all KV on.
    sends : tuple of Span
        The sending as it really happens: layer by layer, or all of it after the prefill.
    decodes : tuple of Span
        The first decode steps.
    """

    layers: Overlap
    sends: tuple[Span, ...]
    decodes: tuple[Span, ...]

    @property
    def ttft_s(self) -> float:
        """The first token is known when the last layer has computed."""
        return self.layers.prefill_s

    @property
    def first_gap_s(self) -> float:
        """From the first token to the second: the rest of the sending, and one decode step."""
        return self.decodes[0].end_s - self.ttft_s


def request_steps(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, new_tokens: int, cached_tokens: int, *,
    stream: bool = True, num_gpus: int = 8, decode_steps: int = 3,
) -> RequestSteps:
    """Follow one request through an idle cluster.

    The prefill instance loads ``cached_tokens`` over its network card's receiving side while it computes, and
    sends all KV over the other side; the decode instance starts when everything has arrived.

    Parameters
    ----------
    stream : bool
        Send each layer when it is done; otherwise everything after the prefill.

    Source: Qin et al. 2025 (Mooncake), figure 4 and section 5.2.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> size = (get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("net-100g"), 4096, 4096)
    >>> request_steps(*size).first_gap_s < request_steps(*size, stream=False).first_gap_s
    True
    """
    whole("new_tokens", new_tokens)
    whole("decode_steps", decode_steps)
    tokens = new_tokens + whole("cached_tokens", cached_tokens, minimum=0)
    load_s, send_s = (
        transfer_s(model.shape.kv_bytes(n) if n else 0, link) / model.layers for n in (cached_tokens, tokens)
    )
    compute_s = prefill_s(model, gpu, new_tokens, cached_tokens, num_gpus) / model.layers
    layers = overlap_layers(*([time_s] * model.layers for time_s in (load_s, compute_s, send_s)))
    sends = layers.stores if stream else _one_by_one(layers.prefill_s, [send_s] * model.layers)
    steps = [decode_step_s(model, gpu, [tokens + 1 + n], num_gpus=num_gpus) for n in range(decode_steps)]
    return RequestSteps(layers, sends, _one_by_one(sends[-1].end_s, steps))


def _one_by_one(start_s: float, durations: list[float]) -> tuple[Span, ...]:
    ends = [start_s + math.fsum(durations[: i + 1]) for i in range(len(durations))]
    return tuple(Span(begin, end) for begin, end in zip([start_s, *ends], ends))
