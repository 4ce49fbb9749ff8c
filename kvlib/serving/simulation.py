"""One call from a workload to a result: names become a model, a GPU, a memory policy and an engine."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from kvlib.blocks.reservation import MaxReservation, OracleReservation, Pow2OracleReservation
from kvlib.errors import ConfigError
from kvlib.serving.clock import DEFAULT_LINK, StepClock
from kvlib.serving.engine import Engine
from kvlib.serving.memory import BlockMemory, PagedMemory, ReservedMemory
from kvlib.serving.no_preemption import StallingScheduler
from kvlib.serving.prefix_cache import CachedMemory
from kvlib.serving.results import ServingResult
from kvlib.serving.scheduler import Scheduler
from kvlib.serving.shared_prefix import PrefixedMemory
from kvlib.serving.static_batching import StaticScheduler
from kvlib.specs import GpuSpec, LinkSpec, ModelSpec, get_gpu, get_link, get_model, kv_slots
from kvlib.specs.checks import one_of, whole

PAGED_ONLY = ("watermark", "cpu_slots", "shared_prefix_tokens", "prefix_caching")


def _paged(num_slots: int, block_size: int, max_len: int, *, prefix_caching: int = 0, **own) -> BlockMemory:
    if prefix_caching:
        return CachedMemory(num_slots, block_size, prefix_caching, **own)
    kind = PrefixedMemory if "shared_prefix_tokens" in own else PagedMemory
    return kind(num_slots, block_size, **own)


# name -> (num_slots, block_size, max_len) -> policy; paged memory has settings of its own.
MEMORIES = {
    "paged": _paged,
    "max": lambda num_slots, block_size, max_len: ReservedMemory(MaxReservation(num_slots, max_len)),
    "pow2": lambda num_slots, block_size, max_len: ReservedMemory(Pow2OracleReservation(num_slots, max_len)),
    "oracle": lambda num_slots, block_size, max_len: ReservedMemory(OracleReservation(num_slots, max_len)),
    "static": lambda num_slots, block_size, max_len: ReservedMemory(MaxReservation(num_slots, max_len)),
}


@dataclass(frozen=True)
class Knobs:
    """The settings of ``simulate`` that most runs leave alone.

    Attributes
    ----------
    num_slots : int or None
        Token slots of KV memory; None takes what the GPU has left beside the weights.
    max_len : int
        Longest prompt plus output that is accepted, and what ``memory="max"`` reserves. 2,048 is OPT's
        context.
    max_num_seqs : int or None
        Most sequences that run at once; None is no limit.
    max_num_batched_tokens : int or None
        Most tokens in one step; None is no limit. Without ``chunked_prefill`` at least ``max_len``: a prompt
        is prefilled in one step.
    chunked_prefill : bool
        Cut prompts to what ``max_num_batched_tokens`` leaves beside the decodes.
    preemption : bool
        Without it, a request that finds no memory stalls in place; see
        :mod:`kvlib.serving.no_preemption`.
    watermark : float
        Share of the blocks that an admission must leave free while others run. For paged memory.
    cpu_slots : int
        Token slots on the host. A preempted request that fits there is swapped, another one is recomputed;
        0 recomputes always. For paged memory.
    shared_prefix_tokens : int
        Tokens that every prompt begins with, computed and pinned beforehand; see
        :mod:`kvlib.serving.shared_prefix`. For paged memory without ``cpu_slots``.
    prefix_caching : int
        Tokens for which each of a request's ``block_ids`` stands, the trace's ``block_size``; 0 is off. Blocks
        that are given back keep their content until they are needed, and a prompt that begins with such
        content skips its prefill; see :mod:`kvlib.serving.prefix_cache`. For paged memory without
        ``cpu_slots`` and ``shared_prefix_tokens``.
    link : str or LinkSpec
        What blocks are swapped over.
    num_gpus : int
        GPUs that share the model by tensor parallelism.
    record : bool
        Keep ``per_request`` and ``timeline``. Without, memory does not grow with the number of completed
        requests.
    """

    num_slots: int | None = None
    max_len: int = 2048
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool = False
    preemption: bool = True
    watermark: float = 0.0
    cpu_slots: int = 0
    shared_prefix_tokens: int = 0
    prefix_caching: int = 0
    link: str | LinkSpec = DEFAULT_LINK
    num_gpus: int = 1
    record: bool = True

    def __post_init__(self):
        whole("max_len", self.max_len)
        whole("num_gpus", self.num_gpus)
        for name, minimum in (
            ("num_slots", 1),
            ("max_num_seqs", 1),
            ("cpu_slots", 0),
            ("shared_prefix_tokens", 0),
            ("prefix_caching", 0),
            ("max_num_batched_tokens", 1 if self.chunked_prefill else self.max_len),
        ):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), minimum)
        for name in ("chunked_prefill", "preemption", "record"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, expected True or False")
        if self.chunked_prefill and self.max_num_batched_tokens is None:
            raise ConfigError("chunked_prefill=True: expected max_num_batched_tokens, the size of a step")


def simulate(
    requests: Iterable,
    *,
    model: str | ModelSpec = "opt-13b",
    gpu: str | GpuSpec = "a100-40gb",
    memory: str = "paged",
    block_size: int = 16,
    **knobs,
) -> ServingResult:
    """Serve a workload on one engine and measure it.

    Parameters
    ----------
    requests : iterable
        In order of arrival; each has ``arrival_s``, ``num_input_tokens`` (at least 1) and
        ``num_output_tokens`` (0 finishes with its prefill), and it may have ``block_ids``,
        ``num_sequences`` and ``beam_search``; see :class:`kvlib.workloads.Request`. A request that could
        never be served is rejected as it arrives.
    model, gpu : str, or ModelSpec and GpuSpec
        Names known to :mod:`kvlib.specs`, or your own.
    memory : str
        ``"paged"``, or a reservation: ``"max"``, ``"pow2"``, ``"oracle"``. ``"static"`` reserves like
        ``"max"`` and batches statically, as FasterTransformer was served.
    block_size : int
        Tokens per block, for paged memory.
    **knobs
        The fields of :class:`Knobs`.

    Raises
    ------
    ConfigError
        For an unknown name or knob, an impossible setting, or a malformed row, which it names.

    Examples
    --------
    >>> from kvlib.workloads import sharegpt_like
    >>> paged = simulate(sharegpt_like(300, rate=6.0, seed=0))
    >>> reserved = simulate(sharegpt_like(300, rate=6.0, seed=0), memory="max")
    >>> paged.completed, paged.mean_running > 3 * reserved.mean_running
    (300, True)
    """
    knobs = _read_knobs(knobs)
    model = model if isinstance(model, ModelSpec) else get_model(model)
    gpu = gpu if isinstance(gpu, GpuSpec) else get_gpu(gpu)
    one_of("memory", memory, MEMORIES)
    whole("block_size", block_size)
    num_slots = kv_slots(model, gpu, num_gpus=knobs.num_gpus) if knobs.num_slots is None else knobs.num_slots
    if num_slots < 1:
        raise ConfigError(
            f"num_gpus: {model.name} leaves no room for KV on {knobs.num_gpus} {gpu.name}, expected more"
        )
    link = knobs.link if isinstance(knobs.link, LinkSpec) else get_link(knobs.link)
    clock = StepClock(model, gpu, knobs.num_gpus, link, block_size)
    scheduler = make_scheduler(memory, num_slots, block_size, knobs)
    return Engine(scheduler, clock, knobs.max_len, knobs.record).run(requests)


def make_scheduler(memory: str, num_slots: int, block_size: int, knobs: Knobs) -> Scheduler:
    """The scheduler of this name, with its memory.

    Raises
    ------
    ConfigError
        For a setting that this kind of memory does not have.
    """
    own = {name: getattr(knobs, name) for name in PAGED_ONLY if getattr(knobs, name)}
    if own and memory != "paged":
        raise ConfigError(f"{', '.join(own)}: expected only with memory='paged', got memory={memory!r}")
    for name in ("shared_prefix_tokens", "prefix_caching"):
        if getattr(knobs, name) and knobs.cpu_slots:
            raise ConfigError(f"{name}: expected without cpu_slots; a host copy shares nothing")
    if knobs.shared_prefix_tokens and knobs.prefix_caching:
        raise ConfigError("shared_prefix_tokens: expected without prefix_caching, which finds any prefix")
    kind = Scheduler if knobs.preemption else StallingScheduler
    return (StaticScheduler if memory == "static" else kind)(
        MEMORIES[memory](num_slots, block_size, knobs.max_len, **own),
        knobs.max_num_seqs,
        knobs.max_num_batched_tokens,
        knobs.chunked_prefill,
    )


def _read_knobs(knobs: dict) -> Knobs:
    known = [field.name for field in fields(Knobs)]
    for name in knobs:
        if name not in known:
            raise ConfigError(f"{name}={knobs[name]!r}: no such knob, expected one of {', '.join(known)}")
    return Knobs(**knobs)
