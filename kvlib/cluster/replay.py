"""Replay a trace through a pool of prefill instances, and see what each routing rule makes of it."""

from kvlib.cluster.decode_pool import DecodeCounts, DecodePool, PairedCluster
from kvlib.cluster.prefill_cluster import PrefillCluster
from kvlib.cluster.prefill_results import PrefillReplay, summarize
from kvlib.cluster.prefill_setup import PrefillSetup, arrivals
from kvlib.specs.checks import whole


def replay_prefill(
    trace, *, instances=8, cache_blocks=3000, policy="kvcache_centric", **knobs
) -> PrefillReplay:
    """Replay a trace through ``instances`` prefill instances, each with a cache of its own.

    Parameters
    ----------
    trace : Trace
        Requests ordered by arrival, with block ids.
    instances, cache_blocks : int
        Prefill instances, and blocks in the cache of each.
    policy : str
        One of ``kvlib.cluster.POLICIES``.
    **knobs
        The other fields of `PrefillSetup`: threshold, SLO, link, speed, hardware, seed.

    Returns
    -------
    PrefillReplay
        ``.hit_ratio .imbalance .ttft_s .rejected .transferred_tokens`` and more.

    Raises
    ------
    ConfigError
        For a trace without block ids or out of order, an unknown policy, zero instances, a threshold
        below 1, an SLO of 0, and the like.

    Source: Qin et al. 2025 (Mooncake), algorithm 1; lecture 7, s9.4; lecture 9, s2.4.

    Examples
    --------
    >>> from kvlib.workloads import conversation_like
    >>> trace = conversation_like(200, seed=0)
    >>> replay_prefill(trace, policy="longest_prefix").imbalance      # every request shares block 0
    8.0
    >>> blind, aware = (replay_prefill(trace, policy=p) for p in ("random", "cache_aware"))
    >>> aware.hit_ratio > blind.hit_ratio
    True
    """
    setup = PrefillSetup(instances, cache_blocks, policy, **knobs)
    cluster = PrefillCluster(*setup.parts(trace))
    _submit(cluster, trace, setup.speed, len(trace.requests))
    cluster.run_until()
    return summarize(cluster, trace.block_size)


def cluster_after(trace, num_requests: int, **knobs) -> PrefillCluster:
    """The prefill pool at the moment when request number ``num_requests`` has just been placed.

    Examples
    --------
    >>> from kvlib.workloads import conversation_like
    >>> cluster = cluster_after(conversation_like(200, seed=0), 50, policy="longest_prefix")
    >>> [instance.num_jobs for instance in cluster.instances]
    [50, 0, 0, 0, 0, 0, 0, 0]
    """
    setup = PrefillSetup(**knobs)
    cluster = PrefillCluster(*setup.parts(trace))
    _submit(cluster, trace, setup.speed, whole("num_requests", num_requests, minimum=0))
    return cluster


def replay_pair(
    trace, *, decode_instances=8, tbt_slo_s=0.1, ttft_slo_s=30.0, **knobs
) -> tuple[PrefillReplay, DecodeCounts]:
    """Replay a trace through both pools: Conductor checks TTFT and TBT, and the decode instance checks again.

    Parameters
    ----------
    decode_instances : int
        Each decodes with ``num_gpus`` GPUs.
    tbt_slo_s, ttft_slo_s : float
        Longest decode step and longest estimated TTFT; the defaults are those of the paper's replay.
    **knobs
        Fields of `PrefillSetup`.

    Examples
    --------
    >>> from kvlib.workloads import conversation_like
    >>> prefill, decode = replay_pair(conversation_like(100, seed=0))
    >>> decode.admitted + decode.rejected_after_prefill == prefill.completed
    True
    """
    setup = PrefillSetup(ttft_slo_s=ttft_slo_s, **knobs)
    decode_pool = DecodePool(decode_instances, setup.clock(), tbt_slo_s)
    cluster = PairedCluster(*setup.parts(trace), decode_pool=decode_pool)
    _submit(cluster, trace, setup.speed, len(trace.requests))
    cluster.run_until()
    return summarize(cluster, trace.block_size), cluster.counts


def _submit(cluster: PrefillCluster, trace, speed: float, num_requests: int) -> None:
    for arrival_ns, request in arrivals(trace, speed)[:num_requests]:
        cluster.submit(arrival_ns, request)
