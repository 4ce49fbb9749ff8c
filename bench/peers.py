"""What others do in the same place: figures reported to this project when its targets were set.

They were taken on the machine the targets were set on, and the programs are not named, so they give the scale and
no ranking.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One program's figure, in the unit of the speed it stands beside; a range where it was reported as one."""

    speed: str
    who: str
    low: float
    high: float


PEERS = (
    Peer("blocks.append", "a published engine's block manager, in Python", 52_000, 52_000),
    Peer("blocks.allocate", "a published engine's block manager, in Python", 1_800, 1_800),
    Peer("serving.rate", "published serving simulators, in Python", 136, 375),
    Peer("serving.rate", "one engine's scheduler alone", 700, 700),
    Peer("prefix.mixed_2000", "a published engine's prefix cache, in Python", 42_000, 74_000),
    Peer("prefix.mixed_20000", "a published engine's prefix cache, in Python", 42_000, 74_000),
    Peer("cluster.rate", "a published replay of such a trace, in Rust: 1.3 s for 1,000 requests", 769, 769),
    Peer("cachegen.rans_decode", "constriction, a library for entropy coding", 24, 32),
    Peer("cachegen.rans_encode", "constriction, a library for entropy coding", 87, 96),
)
