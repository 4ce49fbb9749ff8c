"""What is published about two real traces: the targets of our synthetic ones, kept beside their sources."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTrace:
    """Statistics of a real trace in blocks of 512 tokens.

    Attributes
    ----------
    source : str
        Where the numbers come from.
    num_requests, duration_s : int
        Requests, and the seconds in which they arrive.
    mean_input_tokens, mean_output_tokens : float
        Tokens per request.
    share_used_once : float
        Share of the different blocks that are referenced exactly once.
    reusable_share : float
        Hit ratio of a cache that never evicts.
    lru_hit_ratios : tuple of (int, float)
        Capacity in blocks, and the LRU hit ratio there.
    """

    source: str
    num_requests: int
    duration_s: int
    mean_input_tokens: float
    mean_output_tokens: float
    share_used_once: float
    reusable_share: float
    lru_hit_ratios: tuple[tuple[int, float], ...]

    @property
    def rate(self) -> float:
        """Mean requests per second."""
        return self.num_requests / self.duration_s


CONVERSATION = PublishedTrace(
    source=(
        "Mooncake, FAST'25, table 2 (12,031 requests, 12,035 in, 343 out); the rest measured on "
        "kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl"
    ),
    num_requests=12_031,
    duration_s=3_537,
    mean_input_tokens=12_035.06,
    mean_output_tokens=342.62,
    share_used_once=0.7585,
    reusable_share=0.3664,
    lru_hit_ratios=((1_000, 0.0445), (10_000, 0.2112), (30_000, 0.3257), (50_000, 0.3546), (100_000, 0.3637)),
)

TOOL_AGENT = PublishedTrace(
    source=(
        "Mooncake, FAST'25, table 2 (tool and agent: 23,608 requests, 8,596 in, 182 out, one hour); shares "
        "and hit ratios are other people's measurements of the released trace (oracle P.mc.table1.v5)"
    ),
    num_requests=23_608,
    duration_s=3_600,
    mean_input_tokens=8_596.0,
    mean_output_tokens=182.0,
    share_used_once=0.785,
    reusable_share=0.5526,
    lru_hit_ratios=((1_832, 0.346), (9_158, 0.449), (18_317, 0.508), (45_791, 0.551)),
)
