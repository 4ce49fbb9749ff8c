"""What a run leaves behind: totals and means, a row per request, and a timeline."""

from dataclasses import dataclass

from kvlib.serving.metrics import SlotSplit


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of one request.

    Attributes
    ----------
    index : int
        Row in the workload.
    arrival_s, first_token_s, finish_s : float
        Times; the last two are None where there was no token, or no end.
    num_input_tokens, num_output_tokens : int
    num_preemptions : int
    rejection : str
        Why it was refused on arrival; empty if it was served.
    """

    index: int
    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    first_token_s: float | None = None
    finish_s: float | None = None
    num_preemptions: int = 0
    rejection: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from arrival to the end of the step that made it."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> float | None:
        """End-to-end latency: from arrival to the end of the last step."""
        return None if self.finish_s is None else self.finish_s - self.arrival_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens (also TPOT); None with fewer than two tokens."""
        if self.first_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.num_output_tokens - 1)

    @property
    def normalized_latency_s(self) -> float | None:
        """End-to-end latency per output token; None without output."""
        if self.finish_s is None or not self.num_output_tokens:
            return None
        return self.latency_s / self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Stretch:
    """One row of the timeline: equal steps under one decision.

    Attributes
    ----------
    start_s, end_s : float
    num_steps : int
    num_running, num_waiting : int
        Requests in each of these steps, and requests left waiting at their start.
    preempted, admitted : tuple of int
        Requests that gave way before the first step, and that are prefilled in it.
    finished : tuple of int
        Requests that the last step completes.
    slots : SlotSplit
        The memory during the last step.
    """

    start_s: float
    end_s: float
    num_steps: int
    num_running: int
    num_waiting: int
    preempted: tuple[int, ...]
    admitted: tuple[int, ...]
    finished: tuple[int, ...]
    slots: SlotSplit


@dataclass(frozen=True)
class ServingResult:
    """What a run came to. Means are None, and shares 0, where there is nothing to average over.

    Attributes
    ----------
    submitted, completed, rejected : int
        Requests; every one is either completed or rejected in the end (law L1).
    preemptions, recomputed_tokens : int
        How often a request gave way, and the tokens of KV that were lost with it.
    duration_s : float
        From the first arrival to the end of the last step (or a later arrival that is rejected); all time
        averages are over this.
    num_steps : int
    ttft_s, tbt_s, normalized_latency_s : float or None
        Means over completed requests, over all gaps between tokens, and over completed requests per output
        token.
    mean_running : float
        Time-averaged number of running requests (figure 13 of the PagedAttention paper).
    utilisation : float
        Time-averaged share of KV slots that hold tokens (figure 2 of the same).
    utilisation_by_kind : dict of str to float
        All five shares of :class:`~kvlib.serving.metrics.SlotSplit`; they add up to 1.
    per_request : tuple of RequestOutcome
        In order of the workload; empty without ``record``.
    timeline : tuple of Stretch
        Empty without ``record``.
    """

    submitted: int
    completed: int
    rejected: int
    preemptions: int
    recomputed_tokens: int
    duration_s: float
    num_steps: int
    ttft_s: float | None
    tbt_s: float | None
    normalized_latency_s: float | None
    mean_running: float
    utilisation: float
    utilisation_by_kind: dict[str, float]
    per_request: tuple[RequestOutcome, ...]
    timeline: tuple[Stretch, ...]
