"""A run as a file for a trace viewer (``chrome://tracing`` or https://ui.perfetto.dev).

The format is Google's "Trace Event Format": complete events ("X") with a start and a duration in
microseconds, one row per request, and counter events ("C") for the memory.
"""

import json

from kvlib.serving.metrics import KINDS
from kvlib.serving.results import ServingResult
from kvlib.serving.spans import request_spans

US_PER_S = 1e6


def chrome_trace(result: ServingResult) -> str:
    """The JSON text of a recorded run.

    Examples
    --------
    >>> from kvlib.serving import simulate
    >>> from kvlib.workloads import Request
    >>> events = json.loads(chrome_trace(simulate([Request(0.0, 8, 2)])))["traceEvents"]
    >>> [event["name"] for event in events]
    ['prefill', 'decode', 'KV slots', 'KV slots']
    """
    spans = [
        {
            "name": span.kind,
            "ph": "X",
            "ts": span.start_s * US_PER_S,
            "dur": (span.end_s - span.start_s) * US_PER_S,
            "pid": 0,
            "tid": index,
        }
        for index, parts in request_spans(result).items()
        for span in parts
    ]
    memory = [
        {
            "name": "KV slots",
            "ph": "C",
            "ts": stretch.start_s * US_PER_S,
            "pid": 0,
            "args": {kind: getattr(stretch.slots, kind) for kind in KINDS},
        }
        for stretch in result.timeline
    ]
    return json.dumps({"traceEvents": spans + memory, "displayTimeUnit": "ms"})
