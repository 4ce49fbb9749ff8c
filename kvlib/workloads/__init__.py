"""Request workloads: drawn from stated distributions, or read from the trace files of real services."""

from kvlib.workloads.arrivals import bursty_arrivals_us, poisson_arrivals_us
from kvlib.workloads.lengths import LengthDistribution, mean_lengths
from kvlib.workloads.load import busiest_window, requests_per_minute
from kvlib.workloads.paper_tasks import chatbot_like, translation_like
from kvlib.workloads.prefix_traces import conversation_like, prefix_trace, tool_agent_like
from kvlib.workloads.request import Request
from kvlib.workloads.synthetic import alpaca_like, fixed_lengths, sharegpt_like
from kvlib.workloads.traces import Trace, read_trace

__all__ = [
    "LengthDistribution",
    "Request",
    "Trace",
    "alpaca_like",
    "bursty_arrivals_us",
    "busiest_window",
    "chatbot_like",
    "conversation_like",
    "fixed_lengths",
    "mean_lengths",
    "poisson_arrivals_us",
    "prefix_trace",
    "read_trace",
    "requests_per_minute",
    "sharegpt_like",
    "tool_agent_like",
    "translation_like",
]
