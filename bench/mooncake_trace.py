"""The trace that the replays run on."""

import os
from pathlib import Path

from kvlib.workloads import Trace, conversation_like, read_trace

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[2] / "shared"))
REAL = SHARED / "data" / "mooncake_conversation_trace.jsonl"


def conversation_trace() -> Trace:
    """Mooncake's published hour of conversations where it is, else a synthetic one of the same size."""
    return read_trace(REAL) if REAL.exists() else conversation_like(12_031, seed=0)
