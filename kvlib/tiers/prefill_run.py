"""What a prefill queue is set up with, and what comes of a run. Times are whole nanoseconds."""

import math
from dataclasses import dataclass, field

from kvlib.specs.checks import one_of, real, whole
from kvlib.tiers.batching import POLICIES
from kvlib.tiers.hiradix import WRITE_POLICIES
from kvlib.tiers.machine import Machine


@dataclass(frozen=True)
class Setup:
    """A machine, its cache and its scheduler.

    Attributes
    ----------
    machine : Machine
    policy : str
        ``"fcfs"`` or ``"balanced"``.
    overlap : bool
        Hide loading behind computing, layer by layer (CachedAttention, Pensieve).
    defer : bool
        Put delay hits off until the KV is there.
    fill : bool
        Run decode steps while a batch waits for the link.
    bundle : bool
        Let requests in first that share what the batch loads.
    prefetch : bool
        Copy from the SSD to the host while a request waits.
    batch_size : int
    limit : float
        See :func:`kvlib.tiers.batching.compose`.
    match_tokens : int
        Granularity of the tree. A real engine matches in pages of `machine.page_tokens`; matching long
        documents in larger steps loses little and keeps the simulation quick.
    gpu_tokens, cpu_tokens, ssd_tokens : int
        Capacity of each tier.
    write_policy : str
    decode_sequences, decode_context : int
        The batch whose decode steps fill the gaps.
    """

    machine: Machine = field(default_factory=Machine)
    policy: str = "balanced"
    overlap: bool = True
    defer: bool = True
    fill: bool = True
    bundle: bool = True
    prefetch: bool = True
    batch_size: int = 4
    limit: float = 1.0
    match_tokens: int = 256
    gpu_tokens: int = 300_000
    cpu_tokens: int = 4_000_000
    ssd_tokens: int = 0
    write_policy: str = "write_through"
    decode_sequences: int = 16
    decode_context: int = 2_000

    def __post_init__(self) -> None:
        one_of("policy", self.policy, POLICIES)
        one_of("write_policy", self.write_policy, WRITE_POLICIES)
        for name in ("batch_size", "match_tokens", "gpu_tokens", "decode_sequences", "decode_context"):
            whole(name, getattr(self, name))
        for name in ("cpu_tokens", "ssd_tokens"):
            whole(name, getattr(self, name), minimum=0)
        real("limit", self.limit, above=True)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch as it ran; `members` are indices into the requests, in arrival order."""

    start_ns: int
    end_ns: int
    load_ns: int
    compute_ns: int
    decode_steps: int
    members: tuple[int, ...]

    @property
    def stall_ns(self) -> int:
        """Time in which no prefill computes (decode steps may)."""
        return self.end_ns - self.start_ns - self.compute_ns


@dataclass(frozen=True)
class QueueRun:
    """What came of it.

    Attributes
    ----------
    batches : tuple of BatchRecord
    ttft_ns : tuple of int
        Per request, in the order given: end of its batch minus its arrival.
    deferrals : tuple of int
        How often each was put off for a delay hit.
    computed_tokens, loaded_tokens, prompt_tokens : int
        Summed over requests; a context loaded once for two requests counts once.
    """

    batches: tuple[BatchRecord, ...]
    ttft_ns: tuple[int, ...]
    deferrals: tuple[int, ...]
    computed_tokens: int
    loaded_tokens: int
    prompt_tokens: int

    @property
    def total_ns(self) -> int:
        """From the first batch's start to the last one's end."""
        return self.batches[-1].end_ns - self.batches[0].start_ns if self.batches else 0

    @property
    def busy_ns(self) -> int:
        return sum(batch.end_ns - batch.start_ns for batch in self.batches)

    @property
    def stall_ns(self) -> int:
        return sum(batch.stall_ns for batch in self.batches)

    @property
    def stall_share(self) -> float:
        """Share of the time in batches in which no prefill computes."""
        return self.stall_ns / self.busy_ns if self.busy_ns else 0.0

    @property
    def hit_ratio(self) -> float:
        """Share of prompt tokens that were not computed."""
        return 1 - self.computed_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def decode_steps(self) -> int:
        """Decode steps that ran while batches waited for the link."""
        return sum(batch.decode_steps for batch in self.batches)

    @property
    def mean_ttft_s(self) -> float:
        return math.fsum(self.ttft_ns) / len(self.ttft_ns) / 1e9 if self.ttft_ns else 0.0
