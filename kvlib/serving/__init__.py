"""Serving one model on one engine: continuous batching under a memory policy, simulated event by event."""

from kvlib.serving.clock import StepClock
from kvlib.serving.engine import Engine
from kvlib.serving.memory import PagedMemory, ReservedMemory
from kvlib.serving.metrics import KINDS, Occupancy, SlotSplit
from kvlib.serving.results import RequestOutcome, ServingResult, Stretch
from kvlib.serving.scheduler import Job, Scheduler
from kvlib.serving.simulation import Knobs, simulate

__all__ = [
    "KINDS",
    "Engine",
    "Job",
    "Knobs",
    "Occupancy",
    "PagedMemory",
    "RequestOutcome",
    "ReservedMemory",
    "Scheduler",
    "ServingResult",
    "SlotSplit",
    "StepClock",
    "Stretch",
    "simulate",
]
