"""A batch over time: static and continuous batching of a few requests, millisecond by millisecond.

Time is whole milliseconds. A prefill takes a fixed time per prompt token and a decode step a fixed time,
however many requests share it (chapter 1 says how far that holds). Nothing runs beside a prefill.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, whole

SCHEDULING = ("static", "continuous")


@dataclass(frozen=True)
class Request:
    """What a user asks for; all three numbers are known to us, and the last one to no real scheduler."""

    name: str
    arrival_ms: int
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        whole("arrival_ms", self.arrival_ms, minimum=0)
        whole("prompt_tokens", self.prompt_tokens)
        whole("output_tokens", self.output_tokens)


@dataclass(frozen=True)
class Span:
    """What a request's slot did from `start_ms` to `end_ms`: "prefill", "decode", "stall" or "held".

    A stall is a running request that waits for somebody's prefill. A held slot belongs to a request that
    is done while its batch is not (static batching). Each prefill and each decode step is a span of its own.
    """

    kind: str
    start_ms: int
    end_ms: int


@dataclass
class Served:
    """One request's life.

    Attributes
    ----------
    request : Request
    token_ms : list of int
        When each output token came out; the first at the end of the prefill.
    spans : list of Span
        In order of time. Before the first one the request waits without a slot.
    """

    request: Request
    token_ms: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.token_ms) == self.request.output_tokens

    def spend(self, kind: str, start_ms: int, end_ms: int) -> None:
        """Note what the slot did; idle time that goes on makes the last span longer."""
        last = self.spans[-1] if self.spans else None
        if kind in ("stall", "held") and last and last.kind == kind:
            start_ms = self.spans.pop().start_ms
        self.spans.append(Span(kind, start_ms, end_ms))

    @property
    def ttft_ms(self) -> int:
        """Time to first token: from arrival to the end of the prefill."""
        return self.token_ms[0] - self.request.arrival_ms

    @property
    def tbt_ms(self) -> list[int]:
        """Time between tokens: every gap from one token to the next."""
        return [after - before for before, after in zip(self.token_ms, self.token_ms[1:])]

    @property
    def tpot_ms(self) -> float:
        """Time per output token after the first: the mean gap, 0 where there is none."""
        gaps = self.tbt_ms
        return sum(gaps) / len(gaps) if gaps else 0.0

    def meets(self, ttft_slo_ms: float, tpot_slo_ms: float) -> bool:
        """Whether this user got both what was promised for the first token and for the rest."""
        return self.ttft_ms <= ttft_slo_ms and self.tpot_ms <= tpot_slo_ms


def serve(
    requests: Sequence[Request], *, slots: int, scheduling: str,
    prefill_ms_per_token: int = 1, decode_ms: int = 20,
) -> tuple[Served, ...]:
    """Serve `requests` in order of arrival on `slots` slots.

    Static batching fills the slots when all are empty and keeps them until the last request of the batch is
    done. Continuous batching looks again before every step and gives a freed slot to whoever waits.

    Source: Yu et al. 2022 (Orca), section 3.

    Returns
    -------
    tuple of Served
        As `requests` are given.

    Raises
    ------
    ConfigError
        For sizes that are not positive, no requests, or another kind of scheduling.

    Examples
    --------
    Two slots, three requests: the third starts when the short one ends, or when the long one does.

    >>> three = [Request("A", 0, 40, 2), Request("B", 0, 40, 6), Request("C", 0, 40, 2)]
    >>> for scheduling in SCHEDULING:
    ...     print(scheduling, [done.token_ms[-1] for done in serve(three, slots=2, scheduling=scheduling)])
    static [100, 180, 240]
    continuous [100, 220, 160]
    """
    whole("slots", slots)
    one_of("scheduling", scheduling, SCHEDULING)
    whole("prefill_ms_per_token", prefill_ms_per_token)
    whole("decode_ms", decode_ms)
    if not requests:
        raise ConfigError("requests: got none, expected at least one")
    served = tuple(Served(request) for request in requests)
    waiting = sorted(served, key=lambda one: one.request.arrival_ms)
    batch: list[Served] = []
    now = 0
    while waiting or batch:
        if not batch:
            now = max(now, waiting[0].request.arrival_ms)
        room = slots - len(batch) if scheduling == "continuous" or not batch else 0
        for one in _arrived(waiting, now)[:room]:
            waiting.remove(one)
            now = _prefill(one, batch, now, prefill_ms_per_token)
            batch.append(one)
            if scheduling == "continuous":
                batch = _unfinished(batch)
        if _unfinished(batch):
            now = _decode(batch, now, decode_ms)
        if scheduling == "continuous" or not _unfinished(batch):
            batch = _unfinished(batch)
    return served


def goodput_per_s(served: Sequence[Served], ttft_slo_ms: float, tpot_slo_ms: float) -> float:
    """Requests a second that met both objectives, over the time until the last one was done.

    Source: Zhong et al. 2024 (DistServe), section 1, which asks for the highest rate at which 90 % of
    requests still meet both.

    Examples
    --------
    TTFT is 100 ms, then five steps of 20 ms; the run ends at 200 ms.

    >>> one = serve([Request("A", 0, 100, 6)], slots=1, scheduling="static")
    >>> goodput_per_s(one, 100, 20), goodput_per_s(one, 99, 20)
    (5.0, 0.0)
    """
    end_ms = max(one.token_ms[-1] for one in served)
    return 1000 * sum(one.meets(ttft_slo_ms, tpot_slo_ms) for one in served) / end_ms


def time_in(served: Sequence[Served], kind: str) -> int:
    """Slot-milliseconds that all requests together spent in spans of one kind.

    Examples
    --------
    >>> three = [Request("A", 0, 40, 2), Request("B", 0, 40, 6)]
    >>> time_in(serve(three, slots=2, scheduling="static"), "held")
    80
    """
    return sum(span.end_ms - span.start_ms for one in served for span in one.spans if span.kind == kind)


def _arrived(waiting: Sequence[Served], now: int) -> list[Served]:
    return [one for one in waiting if one.request.arrival_ms <= now]


def _prefill(one: Served, batch: Sequence[Served], now: int, prefill_ms_per_token: int) -> int:
    """Run one prompt while the batch stands still; its end is also the first token."""
    end = now + one.request.prompt_tokens * prefill_ms_per_token
    for other in batch:
        other.spend("held" if other.done else "stall", now, end)
    one.spend("prefill", now, end)
    one.token_ms.append(end)
    return end


def _decode(batch: Sequence[Served], now: int, decode_ms: int) -> int:
    """One step: a token for everybody who still wants one."""
    end = now + decode_ms
    for one in batch:
        one.spend("held" if one.done else "decode", now, end)
        if not one.done:
            one.token_ms.append(end)
    return end


def _unfinished(batch: Sequence[Served]) -> list[Served]:
    return [one for one in batch if not one.done]
