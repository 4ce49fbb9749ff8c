"""What a trace looks like before any cache: how long, how fast, and how often its blocks come back.

The figures of Mooncake, section 4.2: lengths, the share of blocks used once, and the hottest blocks.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import chain

from kvlib.prefix.replay import block_references
from kvlib.specs.checks import whole


@dataclass(frozen=True)
class TraceStatistics:
    """Statistics of one trace.

    Attributes
    ----------
    num_requests : int
        Requests in the trace.
    duration_s : float
        From the first arrival to the last.
    num_arrival_times : int
        Different arrival times; fewer than requests where the log rounds its clock.
    mean_input_tokens, mean_output_tokens : float
        Tokens per request.
    ratio_of_means : float or None
        Mean input over mean output; ``None`` if nothing was generated.
    mean_of_ratios : float or None
        Mean over the requests of input over output, leaving out those without output. A few requests
        with one output token dominate it, which is why it is far above ``ratio_of_means``.
    num_references, num_unique_blocks : int
        Block references, and different blocks among them.
    share_used_once : float
        Share of the different blocks that are referenced exactly once.
    reusable_share : float
        Hit ratio of a cache that never evicts. The rest are first references, which no cache can hit.
    top_1_percent_share : float
        Share of those hits that fall on the most used hundredth of the different blocks.
    hottest : tuple of (int, int)
        The most referenced blocks and their counts, ties in order of appearance.
    """

    num_requests: int
    duration_s: float
    num_arrival_times: int
    mean_input_tokens: float
    mean_output_tokens: float
    ratio_of_means: float | None
    mean_of_ratios: float | None
    num_references: int
    num_unique_blocks: int
    share_used_once: float
    reusable_share: float
    top_1_percent_share: float
    hottest: tuple[tuple[int, int], ...]


def trace_statistics(trace, num_hottest: int = 10) -> TraceStatistics:
    """Return the :class:`TraceStatistics` of a trace with prefix information.

    Parameters
    ----------
    trace : Trace
        Anything with ``.requests``, ordered by arrival.
    num_hottest : int
        How many of the hottest blocks to name.

    Raises
    ------
    ConfigError
        If the trace has no block references or ``num_hottest`` is no whole number.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> first = Space(arrival_s=0, num_input_tokens=9, num_output_tokens=3, block_ids=(0, 1))
    >>> other = Space(arrival_s=2, num_input_tokens=9, num_output_tokens=3, block_ids=(0, 2))
    >>> statistics = trace_statistics(Space(requests=[first, other]))
    >>> statistics.reusable_share, statistics.hottest[0], statistics.ratio_of_means
    (0.25, (0, 2), 3.0)
    """
    whole("num_hottest", num_hottest, minimum=0)
    counts = Counter(chain.from_iterable(block_references(trace)))
    requests = trace.requests
    total_input = sum(request.num_input_tokens for request in requests)
    total_output = sum(request.num_output_tokens for request in requests)
    ratios = [r.num_input_tokens / r.num_output_tokens for r in requests if r.num_output_tokens]
    num_references = counts.total()
    return TraceStatistics(
        num_requests=len(requests),
        duration_s=requests[-1].arrival_s - requests[0].arrival_s,
        num_arrival_times=len({request.arrival_s for request in requests}),
        mean_input_tokens=total_input / len(requests),
        mean_output_tokens=total_output / len(requests),
        ratio_of_means=total_input / total_output if total_output else None,
        mean_of_ratios=math.fsum(ratios) / len(ratios) if ratios else None,
        num_references=num_references,
        num_unique_blocks=len(counts),
        share_used_once=list(counts.values()).count(1) / len(counts),
        reusable_share=(num_references - len(counts)) / num_references,
        top_1_percent_share=_top_share(counts),
        hottest=tuple(counts.most_common(num_hottest)),
    )


def _top_share(counts):
    hits = sorted((count - 1 for count in counts.values()), reverse=True)
    num_top = math.ceil(len(hits) / 100)
    return sum(hits[:num_top]) / sum(hits) if hits[0] else 0.0
