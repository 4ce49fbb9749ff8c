"""A recorded run unfolded into single steps: who did what, and how many tokens each held."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvlib.serving.results import ServingResult


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration of the engine.

    Attributes
    ----------
    doing : dict of int to str
        By request that has run before and is not done, one of the kinds of
        :class:`~kvlib.serving.spans.Span`.
    tokens : dict of int to int
        Tokens in memory during the step, by request that runs; those that it found there are left out. The
        prompt of several sequences counts once.
    swapped : dict of int to int
        Tokens on the host, likewise.
    """

    doing: dict[int, str]
    tokens: dict[int, int]
    swapped: dict[int, int]


def single_steps(result: ServingResult) -> Iterator[Step]:
    """Yield the steps of a recorded run, oldest first.

    Examples
    --------
    >>> from kvlib.serving import simulate
    >>> from kvlib.workloads import Request
    >>> [step.tokens[0] for step in single_steps(simulate([Request(0.0, 8, 4)]))]
    [8, 9, 10, 11]
    """
    sizes = {row.index: row.num_sequences for row in result.per_request}
    tokens: dict[int, int] = {}
    swapped: dict[int, int] = {}
    away: dict[int, str] = {}
    for stretch in result.timeline:
        for index in stretch.preempted:
            held = tokens.pop(index)
            away[index] = "swapped" if index in stretch.swapped_out else "preempted"
            if index in stretch.swapped_out:
                swapped[index] = held
        for index in stretch.admitted:
            away.pop(index, None)
            tokens[index] = swapped.pop(index, 0)
        prefilled = dict(stretch.prefilled)
        for _ in range(stretch.num_steps):
            doing = dict(away)
            for index in tokens:
                is_prefill, is_stalled = index in prefilled, index in stretch.stalled
                doing[index] = "prefill" if is_prefill else "stalled" if is_stalled else "decode"
                tokens[index] += prefilled.get(index, 0 if is_stalled else sizes[index])
            yield Step(doing, dict(tokens), dict(swapped))
        for index in stretch.finished:
            del tokens[index]
