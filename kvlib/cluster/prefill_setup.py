"""The knobs of a replay, and the checks of the trace it is given."""

from dataclasses import dataclass

from kvlib.cluster.conductor import Conductor
from kvlib.cluster.links import NS_PER_S
from kvlib.cluster.pool import BlockPool
from kvlib.cluster.prefill_times import PrefillTimes
from kvlib.errors import ConfigError
from kvlib.prefix.replay import block_references
from kvlib.serving.clock import StepClock
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model
from kvlib.specs.checks import real, whole


@dataclass(frozen=True)
class PrefillSetup:
    """The knobs of a replay.

    Attributes
    ----------
    instances, cache_blocks : int
        Prefill instances, and blocks in the cache of each.
    policy : str
        ``random round_robin least_load longest_prefix cache_aware random_pull kvcache_centric``; what each
        does and how it breaks ties is written in ``kvlib.cluster.conductor``.
    threshold : float
        Balancing threshold of the policies that pull, at least 1: pull where the best prefix elsewhere is
        that many times the local one. With no local prefix any offered prefix is pulled.
    ttft_slo_s : float or None
        Refuse a request whose estimated TTFT is longer, in seconds; None refuses nobody.
    link : str or LinkSpec
        Sending rate of each instance, shared by its concurrent pulls.
    speed : float
        Replay the arrivals that many times faster.
    model, gpu, kv_dtype : str
    num_gpus : int
        GPUs per instance. The default is Mooncake's node: eight A800 and a model like LLaMA-2-70B.
    seed : int
        For ``random`` and ``random_pull``.

    Examples
    --------
    >>> PrefillSetup(instances=2).policy
    'kvcache_centric'
    """

    instances: int = 8
    cache_blocks: int = 3000
    policy: str = "kvcache_centric"
    threshold: float = 2.0
    ttft_slo_s: float | None = None
    link: str | LinkSpec = "net-800g"
    speed: float = 1.0
    model: str = "llama-2-70b"
    gpu: str = "a800-80gb"
    num_gpus: int = 8
    kv_dtype: str = "bf16"
    seed: int = 0

    def parts(self, trace) -> tuple:
        """What a `PrefillCluster` for this trace is made of."""
        model = get_model(self.model)
        slo_ns = None
        if self.ttft_slo_s is not None:
            slo_ns = round(real("ttft_slo_s", self.ttft_slo_s, above=True) * NS_PER_S)
        return (
            BlockPool(self.instances, self.cache_blocks),
            Conductor(self.policy, slo_ns, whole("seed", self.seed, minimum=0)),
            PrefillTimes(model, get_gpu(self.gpu), self.num_gpus),
            _block_size(trace),
            model.shape.kv_bytes_per_token(self.kv_dtype),
            self.link if isinstance(self.link, LinkSpec) else get_link(self.link),
            self.threshold,
        )

    def clock(self) -> StepClock:
        """Decode step times on the same hardware."""
        return StepClock(get_model(self.model), get_gpu(self.gpu), self.num_gpus)


def arrivals(trace, speed: float = 1.0) -> list[tuple[int, object]]:
    """Return ``(arrival in nanoseconds, request)`` pairs, the times compressed ``speed`` times.

    Raises
    ------
    ConfigError
        If the speed is not positive or the requests are not ordered by arrival.
    """
    real("speed", speed, above=True)
    timed = [(round(request.arrival_s * NS_PER_S / speed), request) for request in trace.requests]
    for (before, _), (after, request) in zip(timed, timed[1:]):
        if after < before:
            raise ConfigError(f"trace: arrival at {request.arrival_s} s follows a later one, expected order")
    return timed


def _block_size(trace) -> int:
    """Tokens per block; every prompt must be covered by its block ids."""
    references = block_references(trace)
    block_size = whole("trace.block_size", trace.block_size)
    for number, (request, blocks) in enumerate(zip(trace.requests, references)):
        if len(blocks) * block_size < request.num_input_tokens:
            raise ConfigError(
                f"trace: request {number} has {len(blocks)} block ids for {request.num_input_tokens} tokens, "
                f"expected one per {block_size} tokens"
            )
    return block_size
