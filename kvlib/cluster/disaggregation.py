"""Coupled instances, which prefill and decode in turn, against separate pools for prefill and decode.

Both are built on the engine of chapter 6. A coupled instance is that engine, with or without chunked prefill.
In ``[nP+mD]`` a prefill instance is the same engine asked for one token per request; the KV then crosses a
link, and a decode instance goes on. Requests are dealt to the instances of a pool in turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvlib.cluster.decode_queue import decode_ends_ps
from kvlib.cost import transfer_s
from kvlib.serving import RequestOutcome, simulate
from kvlib.serving.clock import PS_PER_S, StepClock
from kvlib.serving.metrics import percentile
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model, kv_slots
from kvlib.specs.checks import one_of, real, share, whole
from kvlib.workloads.request import Request


@dataclass(frozen=True)
class Hardware:
    """What every instance is made of.

    Attributes
    ----------
    model, gpu : str
    num_gpus : int
        GPUs per instance, sharing the model by tensor parallelism.
    link : str or LinkSpec
        What KV crosses from a prefill to a decode instance. Transfers do not queue: each instance has its own
        card, and at the loads of this chapter it is mostly idle.
    max_len : int
        Longest prompt plus output.

    Examples
    --------
    >>> fast, slow = Hardware(link="nvlink3"), Hardware(link="net-25g")
    >>> fast.kv_transfer_s(2048) < slow.kv_transfer_s(2048) / 50
    True
    """

    model: str = "opt-13b"
    gpu: str = "a100-80gb"
    num_gpus: int = 1
    link: str | LinkSpec = "nvlink3"
    max_len: int = 2048

    def __post_init__(self):
        whole("num_gpus", self.num_gpus)
        whole("max_len", self.max_len)

    @property
    def kv_slots(self) -> int:
        """Token slots of one instance, beside the weights."""
        return kv_slots(get_model(self.model), get_gpu(self.gpu), num_gpus=self.num_gpus)

    def kv_transfer_s(self, num_tokens: int) -> float:
        """Time to send the KV of a prompt in one piece."""
        link = self.link if isinstance(self.link, LinkSpec) else get_link(self.link)
        return transfer_s(get_model(self.model).shape.kv_bytes(num_tokens), link)


@dataclass(frozen=True)
class ClusterRun:
    """What became of every request, in order of arrival (law L1: each is served or rejected).

    Attributes
    ----------
    per_request : tuple of RequestOutcome
    num_gpus : int
        Of the whole cluster.

    Examples
    --------
    >>> from kvlib.workloads import sharegpt_like
    >>> run = serve_coupled(sharegpt_like(20, rate=2.0, seed=0), instances=2)
    >>> run.completed + run.rejected == len(run.per_request)
    True
    """

    per_request: tuple[RequestOutcome, ...]
    num_gpus: int

    @property
    def completed(self) -> int:
        return sum(row.finish_s is not None for row in self.per_request)

    @property
    def rejected(self) -> int:
        return sum(bool(row.rejection) for row in self.per_request)

    def attainment(self, *, ttft_slo_s: float, tbt_slo_s: float) -> float:
        """Share of all requests that met both objectives; 0 where none arrived."""
        real("ttft_slo_s", ttft_slo_s, above=True)
        real("tbt_slo_s", tbt_slo_s, above=True)
        met = sum(row.meets(ttft_slo_s, tbt_slo_s) for row in self.per_request)
        return met / len(self.per_request) if self.per_request else 0.0

    def percentile(self, latency: str, percent: float) -> float | None:
        """``"ttft_s"`` or ``"tbt_s"`` (each request's mean) that ``percent`` % of the served stay within."""
        one_of("latency", latency, ("ttft_s", "tbt_s"))
        values = (getattr(row, latency) for row in self.per_request if row.finish_s is not None)
        return percentile([value for value in values if value is not None], percent)


def serve_coupled(
    requests: Iterable[Request], instances: int, hardware: Hardware = Hardware(),
    chunk_tokens: int | None = None
) -> ClusterRun:
    """Serve on ``[nM]``: every instance prefills and decodes.

    Parameters
    ----------
    requests : iterable of Request
        In order of arrival.
    instances : int
    hardware : Hardware
    chunk_tokens : int or None
        Most tokens in a step, prompts cut to fit (chunked prefill); None lets a prompt take its step alone
        with the decodes, however long it is.

    Examples
    --------
    >>> from kvlib.workloads import sharegpt_like
    >>> run = serve_coupled(sharegpt_like(60, rate=4.0, seed=0), instances=2)
    >>> run.completed, run.num_gpus
    (60, 2)
    """
    knobs = {} if chunk_tokens is None else {"chunked_prefill": True, "max_num_batched_tokens": chunk_tokens}
    requests = tuple(requests)
    rows = _on_instances(requests, instances, hardware, **knobs)
    return ClusterRun(tuple(rows), instances * hardware.num_gpus)


def serve_disaggregated(
    requests: Iterable[Request], prefill_instances: int, decode_instances: int,
    hardware: Hardware = Hardware()
) -> ClusterRun:
    """Serve on ``[nP+mD]``: the first token comes from the prefill pool, the others from the decode pool.

    The time between the first and the second token holds the transfer and any wait for decode memory; it
    counts into the request's time between tokens.

    Source: Zhong et al. 2024 (DistServe), section 4.

    Examples
    --------
    >>> from kvlib.workloads import fixed_lengths
    >>> requests = fixed_lengths(60, 8.0, 0, num_input_tokens=512, num_output_tokens=64)
    >>> split, coupled = serve_disaggregated(requests, 1, 1), serve_coupled(requests, 2)
    >>> split.percentile("tbt_s", 90) < coupled.percentile("tbt_s", 90)
    True
    """
    requests = tuple(requests)
    num_instances = whole("prefill_instances", prefill_instances)
    num_instances += whole("decode_instances", decode_instances)
    first = [Request(r.arrival_s, r.num_input_tokens, min(1, r.num_output_tokens)) for r in requests]
    prefilled = _on_instances(first, prefill_instances, hardware)
    moved, longest = [], min(hardware.max_len, hardware.kv_slots)
    for request, row in zip(requests, prefilled):
        too_long = request.num_input_tokens + request.num_output_tokens > longest
        if request.num_output_tokens > 1 and not row.rejection and not too_long:
            here_s = row.finish_s + hardware.kv_transfer_s(request.num_input_tokens)
            moved.append((round(here_s * PS_PER_S), row.index, request))
    ends = _decode(sorted(moved, key=lambda one: one[:2]), decode_instances, hardware)
    rows = [_joined(row, request, ends.get(row.index)) for row, request in zip(prefilled, requests)]
    return ClusterRun(tuple(rows), num_instances * hardware.num_gpus)


def _on_instances(requests, instances: int, hardware: Hardware, **knobs) -> list[RequestOutcome]:
    """Deal requests to engines in turn, and put their rows back in order."""
    rows: list = [None] * len(requests)
    for first in range(whole("instances", instances)):
        result = simulate(
            requests[first::instances], model=hardware.model, gpu=hardware.gpu, num_gpus=hardware.num_gpus,
            max_len=hardware.max_len, **knobs,
        )
        for row in result.per_request:
            index = first + row.index * instances
            rows[index] = replace(row, index=index)
    return rows


def _decode(moved, instances: int, hardware: Hardware) -> dict[int, int]:
    """End in picoseconds by request, KV dealt to decode instances in order of its arrival there."""
    clock = StepClock(get_model(hardware.model), get_gpu(hardware.gpu), hardware.num_gpus)
    ends = {}
    for first in range(instances):
        mine = moved[first::instances]
        arrivals = [(time_ps, r.num_input_tokens, r.num_output_tokens - 1) for time_ps, _, r in mine]
        ends.update(zip((index for _, index, _ in mine), decode_ends_ps(clock, hardware.kv_slots, arrivals)))
    return ends


def _joined(row: RequestOutcome, request: Request, end_ps: int | None) -> RequestOutcome:
    finish_s = row.finish_s if request.num_output_tokens <= 1 else None
    rejection = row.rejection
    if end_ps is not None:
        finish_s = end_ps / PS_PER_S
    elif finish_s is None and not rejection:
        rejection = "prompt + output does not fit a decode instance"
    return RequestOutcome(
        row.index, row.arrival_s, request.num_input_tokens, request.num_output_tokens,
        None if rejection else row.first_token_s, finish_s, 0, rejection,
    )


def highest_rate(
    serve, draw, *, ttft_slo_s: float, tbt_slo_s: float, goal: float = 0.9, top_per_s: float = 64.0
) -> float:
    """Goodput: the highest arrival rate at which a share ``goal`` of the requests meets both objectives.

    Parameters
    ----------
    serve : callable
        Requests in, `ClusterRun` out.
    draw : callable
        A rate in requests/s in, requests out; the same requests at every rate, only closer together.
    ttft_slo_s, tbt_slo_s : float
    goal : float
    top_per_s : float
        Rates above are not tried.

    Returns
    -------
    float
        In requests/s, to 1/128 of ``top_per_s``; 0.0 if even the lowest rate misses the goal.

    Source: Zhong et al. 2024 (DistServe), section 2: goodput at 90 % attainment.

    Examples
    --------
    >>> from kvlib.workloads import fixed_lengths
    >>> draw = lambda rate: fixed_lengths(60, rate, 0, num_input_tokens=512, num_output_tokens=64)
    >>> strict, loose = (
    ...     highest_rate(lambda r: serve_coupled(r, 1), draw, ttft_slo_s=0.4, tbt_slo_s=tbt)
    ...     for tbt in (0.03, 0.06)
    ... )
    >>> strict < loose
    True
    """
    share("goal", goal)
    grain = real("top_per_s", top_per_s, above=True) / 128
    low, high = 0, 128
    while low < high:  # the largest multiple of the grain that meets the goal
        middle = (low + high + 1) // 2
        met = serve(draw(middle * grain)).attainment(ttft_slo_s=ttft_slo_s, tbt_slo_s=tbt_slo_s)
        low, high = (middle, high) if met >= goal else (low, middle - 1)
    return low * grain
