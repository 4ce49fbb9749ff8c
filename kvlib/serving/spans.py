"""What each request did when, read off the timeline of a run."""

from dataclasses import dataclass

from kvlib.serving.results import ServingResult

SPAN_KINDS = ("waiting", "prefill", "decode", "stalled", "preempted", "swapped", "held")


@dataclass(frozen=True, slots=True)
class Span:
    """One uninterrupted part of a request's life.

    Attributes
    ----------
    kind : str
        ``"waiting"`` before it first runs, ``"prefill"``, ``"decode"``, ``"stalled"`` (no room for its next
        token), ``"preempted"`` (its KV dropped), ``"swapped"`` (its KV on the host), or ``"held"`` (done, in
        a static batch that is not).
    start_s, end_s : float
    """

    kind: str
    start_s: float
    end_s: float


def request_spans(result: ServingResult) -> dict[int, tuple[Span, ...]]:
    """Spans of every request that was not rejected, in order of time, by row of the workload.

    They lie end to end from arrival to finish or, in a deadlock, to the end of the run. The run must have
    been recorded.

    Examples
    --------
    >>> from kvlib.serving import simulate
    >>> from kvlib.workloads import Request
    >>> spans = request_spans(simulate([Request(0.0, 8, 16)] * 2, num_slots=32, block_size=4))
    >>> [span.kind for span in spans[1]]
    ['prefill', 'decode', 'preempted', 'prefill', 'decode']
    """
    served = [row for row in result.per_request if not row.rejection]
    spans = {row.index: [] for row in served}
    now = {row.index: ("waiting", row.arrival_s) for row in served}

    def turn(index: int, kind: str, time_s: float) -> None:
        before, since_s = now[index]
        if kind != before:
            if since_s < time_s:
                spans[index].append(Span(before, since_s, time_s))
            now[index] = (kind, time_s)

    running: set[int] = set()
    for stretch in result.timeline:
        for index in stretch.preempted:
            turn(index, "swapped" if index in stretch.swapped_out else "preempted", stretch.start_s)
        running = (running - set(stretch.preempted)) | set(stretch.admitted)
        prefilled = dict(stretch.prefilled)
        for index in running:
            is_prefill, is_stalled = index in prefilled, index in stretch.stalled
            turn(index, "prefill" if is_prefill else "stalled" if is_stalled else "decode", stretch.start_s)
        for index in stretch.finished:
            turn(index, "held", stretch.end_s)
        running -= set(stretch.finished)
    end_s = result.timeline[-1].end_s if result.timeline else 0.0
    for row in served:
        turn(row.index, "gone", end_s if row.finish_s is None else row.finish_s)
    return {index: tuple(parts) for index, parts in spans.items()}
