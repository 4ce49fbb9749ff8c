"""Serving one model on one engine: continuous batching under a memory policy, simulated event by event."""

from kvlib.serving.chrome_trace import chrome_trace
from kvlib.serving.clock import StepClock
from kvlib.serving.engine import Engine
from kvlib.serving.groups import Groups
from kvlib.serving.job import Job
from kvlib.serving.memory import Growth, PagedMemory, ReservedMemory, Room
from kvlib.serving.metrics import KINDS, Occupancy, SlotSplit, percentile
from kvlib.serving.no_preemption import StallingScheduler
from kvlib.serving.prefix_cache import CachedMemory
from kvlib.serving.results import LATENCIES, RequestOutcome, ServingResult, Stretch
from kvlib.serving.scheduler import Scheduler
from kvlib.serving.shared_prefix import PrefixedMemory
from kvlib.serving.simulation import Knobs, simulate
from kvlib.serving.spans import SPAN_KINDS, Span, request_spans
from kvlib.serving.static_batching import StaticScheduler
from kvlib.serving.steps import Step, single_steps

__all__ = [
    "KINDS",
    "LATENCIES",
    "CachedMemory",
    "Engine",
    "Groups",
    "Growth",
    "Job",
    "Knobs",
    "Occupancy",
    "PagedMemory",
    "PrefixedMemory",
    "RequestOutcome",
    "ReservedMemory",
    "Room",
    "SPAN_KINDS",
    "Scheduler",
    "ServingResult",
    "SlotSplit",
    "Span",
    "StallingScheduler",
    "StaticScheduler",
    "Step",
    "StepClock",
    "Stretch",
    "chrome_trace",
    "percentile",
    "request_spans",
    "simulate",
    "single_steps",
]
