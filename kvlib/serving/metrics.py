"""What a run is judged by: where the memory was, and how long the requests took.

All sums are integers (slots, tokens, picoseconds); they become seconds and shares once, at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from kvlib.errors import ConfigError
from kvlib.serving.clock import PS_PER_S
from kvlib.specs.checks import real


@dataclass(frozen=True, slots=True)
class SlotSplit:
    """Every slot of the memory, by what it is good for at one instant; figure 2 of the PagedAttention paper.

    Attributes
    ----------
    used : int
        Holds a token.
    reserved : int
        Held, empty, and its request will use it later.
    internal : int
        Held, and its request will never use it (internal fragmentation).
    external : int
        Free, while a request waits because memory cannot serve it (external fragmentation).
    free : int
        Free, and nobody waits for memory.
    """

    used: int
    reserved: int
    internal: int
    external: int
    free: int


KINDS = tuple(field.name for field in fields(SlotSplit))


class Occupancy:
    """Slots by kind, now and integrated over time.

    Examples
    --------
    >>> occupancy = Occupancy(num_slots=100)
    >>> occupancy.empty, occupancy.padding = 40, 30
    >>> occupancy.split(held=60, is_short=True)
    SlotSplit(used=20, reserved=10, internal=30, external=40, free=0)
    >>> occupancy.stay(5, held=60, is_short=True); occupancy.stay(5, held=100, is_short=False)
    >>> occupancy.shares()
    {'used': 0.4, 'reserved': 0.1, 'internal': 0.3, 'external': 0.2, 'free': 0.0}
    """

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        self.empty = 0  # held slots that hold no token yet
        self.padding = 0  # those of them that their requests will never use
        self._time_ps = 0
        # Slots times picoseconds.
        self._used_time = self._held_time = self._padding_time = self._external_time = 0

    def split(self, held: int, is_short: bool) -> SlotSplit:
        """The memory at this instant; ``is_short`` says that a request waits for memory."""
        free = self.num_slots - held
        external = free if is_short else 0
        used, reserved = held - self.empty, self.empty - self.padding
        return SlotSplit(used, reserved, self.padding, external, free - external)

    def stay(self, duration_ps: int, held: int, is_short: bool) -> None:
        """Let time pass with nothing changing."""
        used, padding = held - self.empty, self.padding
        self.add(duration_ps, duration_ps * used, duration_ps * held, duration_ps * padding, is_short)

    def add(
        self, duration_ps: int, used_time: int, held_time: int, padding_time: int, is_short: bool
    ) -> None:
        """Let time pass over which these slot-picoseconds were used, held and padding."""
        self._time_ps += duration_ps
        self._used_time += used_time
        self._held_time += held_time
        self._padding_time += padding_time
        if is_short:
            self._external_time += duration_ps * self.num_slots - held_time

    def shares(self) -> dict[str, float]:
        """Time-averaged share of the memory by kind; all 0.0 before any time has passed."""
        total = self._time_ps * self.num_slots
        slot_time = SlotSplit(
            used=self._used_time,
            reserved=self._held_time - self._used_time - self._padding_time,
            internal=self._padding_time,
            external=self._external_time,
            free=total - self._held_time - self._external_time,
        )
        return {kind: getattr(slot_time, kind) / total if total else 0.0 for kind in KINDS}


class LatencySums:
    """Running sums over completed requests; they take the same memory however many there are."""

    def __init__(self):
        self._ttft = _Mean()
        self._gaps = _Mean()
        self._latency = _Mean()
        self._normalized = _Mean()

    def complete(
        self, arrival_ps: int, first_token_ps: int | None, finish_ps: int, num_output_tokens: int
    ) -> None:
        """Count one completed request; without output it has no latency per token."""
        self._latency.add(finish_ps - arrival_ps, 1)
        if not num_output_tokens:
            return
        self._ttft.add(first_token_ps - arrival_ps, 1)
        self._gaps.add(finish_ps - first_token_ps, num_output_tokens - 1)
        # Rounded down to whole picoseconds, so that the sum does not depend on the order of completion.
        self._normalized.add((finish_ps - arrival_ps) // num_output_tokens, 1)

    def means_s(self) -> dict[str, float | None]:
        """Means in seconds: TBT over all gaps between tokens, the others over requests."""
        return {
            "ttft_s": self._ttft.seconds(),
            "tbt_s": self._gaps.seconds(),
            "latency_s": self._latency.seconds(),
            "normalized_latency_s": self._normalized.seconds(),
        }


class _Mean:
    def __init__(self):
        self.total_ps = 0
        self.count = 0

    def add(self, total_ps: int, count: int) -> None:
        self.total_ps += total_ps
        self.count += count

    def seconds(self) -> float | None:
        return self.total_ps / (self.count * PS_PER_S) if self.count else None


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The smallest value that at least ``percent`` % of the values do not exceed; None if there are none.

    Nearest rank, so it is always one of the values.

    Raises
    ------
    ConfigError
        If ``percent`` is not above 0 and at most 100.

    Examples
    --------
    >>> percentile([30, 10, 40, 20], 50), percentile([30, 10, 40, 20], 75.1), percentile([], 99)
    (20, 40, None)
    """
    if real("percent", percent, above=True) > 100:
        raise ConfigError(f"percent: got {percent!r}, expected above 0 and at most 100")
    ordered = sorted(values)
    # In whole hundredths of a per cent: 0.07 * 100 is above 7 in floating point, and would be one rank off.
    rank = -(-round(percent * 100) * len(ordered) // 10_000)
    return ordered[max(rank, 1) - 1] if ordered else None
