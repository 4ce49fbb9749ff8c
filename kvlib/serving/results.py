"""What a run leaves behind: totals and means, a row per request, and a timeline."""

from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.serving.metrics import SlotSplit, percentile
from kvlib.specs.checks import one_of, real

LATENCIES = ("ttft_s", "tbt_s", "latency_s", "normalized_latency_s")


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
        Of the prompt, and of each sequence that answers it.
    num_preemptions : int
    rejection : str
        Why it was refused on arrival; empty if it was served.
    num_sequences : int

    Examples
    --------
    >>> row = RequestOutcome(0, 1.0, 100, 11, first_token_s=1.5, finish_s=2.5)
    >>> row.ttft_s, row.tbt_s
    (0.5, 0.1)
    """

    index: int
    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    first_token_s: float | None = None
    finish_s: float | None = None
    num_preemptions: int = 0
    rejection: str = ""
    num_sequences: int = 1

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: from arrival to the end of the step that made it."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> float | None:
        """End-to-end latency: from arrival until the whole answer is handed over."""
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

    def meets(self, ttft_slo_s: float, tbt_slo_s: float) -> bool:
        """Whether it was served within both objectives; one it has no tokens for is met."""
        if self.finish_s is None:
            return False
        return (self.ttft_s or 0.0) <= ttft_slo_s and (self.tbt_s or 0.0) <= tbt_slo_s


@dataclass(frozen=True, slots=True)
class Stretch:
    """One row of the timeline: equal steps under one decision.

    Attributes
    ----------
    start_s, end_s : float
    num_steps : int
    num_running, num_waiting : int
        Requests in each of these steps, and requests left waiting at their start.
    preempted, swapped_out : tuple of int
        Requests that gave way before the first step, and those of them whose blocks went to the host.
    admitted : tuple of int
        Requests that run from this step on.
    prefilled : tuple of (int, int)
        Requests that are prefilled in it, and how many of their tokens. Who is admitted without a prefill
        comes back from the host.
    stalled : tuple of int
        Requests that run but get no room for a token in this step, and wait in place.
    finished : tuple of int
        Requests that get their last token in the last step.
    slots : SlotSplit
        The memory during the last step.
    """

    start_s: float
    end_s: float
    num_steps: int
    num_running: int
    num_waiting: int
    preempted: tuple[int, ...]
    swapped_out: tuple[int, ...]
    admitted: tuple[int, ...]
    prefilled: tuple[tuple[int, int], ...]
    stalled: tuple[int, ...]
    finished: tuple[int, ...]
    slots: SlotSplit


@dataclass(frozen=True)
class ServingResult:
    """What a run came to. Means are None, and shares 0, where there is nothing to average over.

    Attributes
    ----------
    submitted, completed, rejected : int
        Requests that arrived, and what became of them. Unless the run is deadlocked, every one is either
        completed or rejected (law L1).
    deadlocked : bool
        The run ended because nobody could take another step; requests after that moment were not looked at.
    preemptions, recomputed_tokens, swapped_tokens : int
        How often a request gave way, and the tokens of KV that had to be computed again, or moved to the
        host, for it.
    output_tokens : int
        Of completed requests, all their sequences together.
    prompt_tokens, hit_tokens : int
        Of requests that were admitted, and those of them that were found in memory; each request counts
        once, however often it is preempted.
    duration_s : float
        From the first arrival to the end of the last step (or a later arrival that is rejected); all time
        averages are over this.
    num_steps : int
    ttft_s, tbt_s, latency_s, normalized_latency_s : float or None
        Means over completed requests: time to first token, time between tokens (also TPOT; over all gaps),
        end-to-end latency, and the same per output token.
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

    Examples
    --------
    >>> from kvlib.serving import simulate
    >>> from kvlib.workloads import sharegpt_like
    >>> run = simulate(sharegpt_like(50, rate=2.0, seed=0))
    >>> run.completed + run.rejected == run.submitted
    True
    """

    submitted: int
    completed: int
    rejected: int
    deadlocked: bool
    preemptions: int
    recomputed_tokens: int
    swapped_tokens: int
    output_tokens: int
    prompt_tokens: int
    hit_tokens: int
    duration_s: float
    num_steps: int
    ttft_s: float | None
    tbt_s: float | None
    latency_s: float | None
    normalized_latency_s: float | None
    mean_running: float
    utilisation: float
    utilisation_by_kind: dict[str, float]
    per_request: tuple[RequestOutcome, ...]
    timeline: tuple[Stretch, ...]

    @property
    def in_flight(self) -> int:
        """Requests that had arrived and were neither completed nor rejected; 0 without a deadlock."""
        return self.submitted - self.completed - self.rejected

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that needed no prefill; 0 where nothing was admitted."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def requests_per_s(self) -> float:
        """Throughput in completed requests."""
        return self.completed / self.duration_s if self.duration_s else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Throughput in output tokens of completed requests."""
        return self.output_tokens / self.duration_s if self.duration_s else 0.0

    def percentile(self, latency: str, percent: float) -> float | None:
        """A percentile over completed requests; see :func:`kvlib.serving.metrics.percentile`.

        Parameters
        ----------
        latency : str
            ``"ttft_s"``, ``"tbt_s"`` (each request's mean), ``"latency_s"`` or ``"normalized_latency_s"``.
        percent : float

        Raises
        ------
        ConfigError
            For another name or percentage, or a run without rows.
        """
        one_of("latency", latency, LATENCIES)
        values = (getattr(row, latency) for row in self._rows() if row.finish_s is not None)
        return percentile([value for value in values if value is not None], percent)

    def attainment(self, *, ttft_slo_s: float, tbt_slo_s: float) -> float:
        """Share of the requests that arrived that met both objectives at once; 0 where none arrived.

        A request that was rejected or never finished has met neither.
        """
        return self._num_good(ttft_slo_s, tbt_slo_s) / self.submitted if self.submitted else 0.0

    def goodput_per_s(self, *, ttft_slo_s: float, tbt_slo_s: float) -> float:
        """Requests per second that met both objectives at once (Zhong et al., DistServe, OSDI 2024)."""
        return self._num_good(ttft_slo_s, tbt_slo_s) / self.duration_s if self.duration_s else 0.0

    def _num_good(self, ttft_slo_s: float, tbt_slo_s: float) -> int:
        real("ttft_slo_s", ttft_slo_s)
        real("tbt_slo_s", tbt_slo_s)
        return sum(row.meets(ttft_slo_s, tbt_slo_s) for row in self._rows())

    def _rows(self) -> tuple[RequestOutcome, ...]:
        if len(self.per_request) != self.submitted:
            raise ConfigError("record: got False, expected True: this needs a row per request")
        return self.per_request
