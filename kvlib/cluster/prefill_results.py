"""What came of a replay through the prefill pool."""

import math
from dataclasses import dataclass

from kvlib.cluster.links import NS_PER_S
from kvlib.cluster.prefill_cluster import Job, PrefillCluster
from kvlib.errors import ConfigError
from kvlib.specs.checks import real


@dataclass(frozen=True)
class PrefillReplay:
    """What came of a replay. Ratios and times are over the requests that were accepted.

    Attributes
    ----------
    submitted, rejected : int
        Requests; a rejected one leaves no trace in any cache.
    references, reused_blocks : int
        Prompt blocks of the accepted requests, and those that were not computed again.
    transferred_tokens, computed_tokens : int
        Tokens whose KV was pulled over the network, and tokens that were prefilled.
    duration_s : float
        From time 0 to the last prefill's end.
    busy_s : tuple of float
        Prefill time of each instance.
    requests_by_instance : tuple of int
    ttfts_s, estimates_s : tuple of float
        TTFT of each accepted request, and what Conductor expected.

    Examples
    --------
    >>> from kvlib.cluster import replay_prefill
    >>> from kvlib.workloads import conversation_like
    >>> run = replay_prefill(conversation_like(100, seed=0), instances=2)
    >>> run.submitted, run.rejected, len(run.busy_s)
    (100, 0, 2)
    """

    submitted: int
    rejected: int
    references: int
    reused_blocks: int
    transferred_tokens: int
    computed_tokens: int
    duration_s: float
    busy_s: tuple[float, ...]
    requests_by_instance: tuple[int, ...]
    ttfts_s: tuple[float, ...]
    estimates_s: tuple[float, ...]

    @property
    def completed(self) -> int:
        """Requests that got their first token."""
        return self.submitted - self.rejected

    @property
    def hit_ratio(self) -> float:
        """Reused over referenced blocks, pulled ones included; 0 if everything was rejected."""
        return self.reused_blocks / self.references if self.references else 0.0

    @property
    def imbalance(self) -> float:
        """Prefill time of the busiest instance over the mean, from 1 (even) to the number of instances."""
        total = math.fsum(self.busy_s)
        return max(self.busy_s) * len(self.busy_s) / total if total else 1.0

    @property
    def ttft_s(self) -> float:
        """Mean time to first token; 0 if everything was rejected."""
        return math.fsum(self.ttfts_s) / len(self.ttfts_s) if self.ttfts_s else 0.0

    def ttft_percentile_s(self, percent: float) -> float:
        """The TTFT that ``percent`` % of the accepted requests stay within (nearest rank)."""
        if not 0 < real("percent", percent) <= 100:
            raise ConfigError(f"percent: got {percent!r}, expected above 0 and at most 100")
        ranked = sorted(self.ttfts_s)
        return ranked[math.ceil(percent / 100 * len(ranked)) - 1] if ranked else 0.0


def summarize(cluster: PrefillCluster, block_size: int) -> PrefillReplay:
    """Count what the jobs of a finished cluster amount to."""
    jobs = cluster.jobs
    return PrefillReplay(
        submitted=len(jobs) + cluster.num_rejected,
        rejected=cluster.num_rejected,
        references=sum(len(job.request.block_ids) for job in jobs),
        reused_blocks=sum(job.reused_blocks for job in jobs),
        transferred_tokens=sum(job.pulled_blocks for job in jobs) * block_size,
        computed_tokens=sum(_computed_tokens(job, block_size) for job in jobs),
        duration_s=max((job.end_ns for job in jobs), default=0) / NS_PER_S,
        busy_s=tuple(instance.busy_ns / NS_PER_S for instance in cluster.instances),
        requests_by_instance=tuple(instance.num_jobs for instance in cluster.instances),
        ttfts_s=tuple(job.ttft_ns / NS_PER_S for job in jobs),
        estimates_s=tuple(job.estimated_ttft_ns / NS_PER_S for job in jobs),
    )


def _computed_tokens(job: Job, block_size: int) -> int:
    return max(1, job.request.num_input_tokens - job.reused_blocks * block_size)
