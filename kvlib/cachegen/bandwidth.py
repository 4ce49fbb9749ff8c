"""How fast the network is, second by second: four made-up kinds and a file of the reader's own.

Time is in whole nanoseconds and bandwidth in whole bytes per second, so a transfer ends at the same instant
on every machine.
"""

import random
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from kvlib.errors import TraceError
from kvlib.specs.checks import real, whole

NS_PER_S = 10**9
BYTES_PER_GBIT = 125_000_000


@dataclass(frozen=True)
class Bandwidth:
    """Piecewise constant bandwidth.

    Parameters
    ----------
    starts_ns : tuple of int
        When each piece begins; the first at 0, ascending.
    bytes_per_s : tuple of int
        How fast each piece is, at least 1; the last one holds for ever.
    """

    starts_ns: tuple[int, ...]
    bytes_per_s: tuple[int, ...]

    def end_ns(self, begin_ns: int, num_bytes: int) -> int:
        """When a transfer of `num_bytes` that begins at `begin_ns` is over.

        Examples
        --------
        >>> link = Bandwidth((0, NS_PER_S), (100, 200))
        >>> link.end_ns(0, 100), link.end_ns(0, 300), link.end_ns(2 * NS_PER_S, 100)
        (1000000000, 2000000000, 2500000000)
        """
        piece, now, left = bisect_right(self.starts_ns, begin_ns) - 1, begin_ns, num_bytes
        while piece + 1 < len(self.starts_ns):
            room = (self.starts_ns[piece + 1] - now) * self.bytes_per_s[piece] // NS_PER_S
            if room >= left:
                break
            left -= room
            piece += 1
            now = self.starts_ns[piece]
        # Rounded up: the last byte has arrived when the whole nanosecond is over.
        return now - (-left * NS_PER_S // self.bytes_per_s[piece])


def steady(gbps: float) -> Bandwidth:
    """The same bandwidth for ever, in 10^9 bits per second.

    Examples
    --------
    >>> steady(3).end_ns(0, 375_000_000) == NS_PER_S
    True
    """
    return Bandwidth((0,), (_bytes_per_s(gbps),))


def square_wave(high_gbps: float, low_gbps: float, half_period_s: float, pieces: int = 200) -> Bandwidth:
    """High and low in turn, `half_period_s` each, high first."""
    half = round(real("half_period_s", half_period_s, above=True) * NS_PER_S)
    pair = (_bytes_per_s(high_gbps), _bytes_per_s(low_gbps))
    return Bandwidth(tuple(i * half for i in range(pieces)), tuple(pair[i % 2] for i in range(pieces)))


def markov(
    high_gbps: float, low_gbps: float, stay: float, step_s: float, seed: int, pieces: int = 200
) -> Bandwidth:
    """Two states; after each step the state stays with probability `stay`. At 0.5 every step is independent.

    Examples
    --------
    >>> markov(3, 0.5, 1.0, 0.1, seed=1) .bytes_per_s.count(375_000_000) in (0, 200)
    True
    """
    rng = random.Random(seed)
    step = round(real("step_s", step_s, above=True) * NS_PER_S)
    pair = (_bytes_per_s(high_gbps), _bytes_per_s(low_gbps))
    state, states = rng.randrange(2), []
    for _ in range(whole("pieces", pieces)):
        states.append(pair[state])
        if rng.random() >= stay:
            state = 1 - state
    return Bandwidth(tuple(i * step for i in range(pieces)), tuple(states))


def uniform_steps(
    low_gbps: float, high_gbps: float, step_s: float, seed: int, pieces: int = 200
) -> Bandwidth:
    """A bandwidth drawn anew and evenly between two bounds every `step_s`: nothing to learn from the past."""
    rng = random.Random(seed)
    step = round(real("step_s", step_s, above=True) * NS_PER_S)
    low, high = _bytes_per_s(low_gbps), _bytes_per_s(high_gbps)
    drawn = tuple(low + rng.randrange(high - low + 1) for _ in range(whole("pieces", pieces)))
    return Bandwidth(tuple(i * step for i in range(pieces)), drawn)


def read_bandwidth(path) -> Bandwidth:
    """Read a recorded trace: lines of ``seconds,gbps``, seconds ascending.

    A heading and # comments may stand above. Before the first line its bandwidth holds
    already; after the last one it stays.

    Raises
    ------
    TraceError
        If the file cannot be read, or with the line number where a line cannot.
    """
    starts, speeds = [], []
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError, TypeError) as error:
        raise TraceError(f"{path!r}: cannot be read ({error}), expected the path of a bandwidth trace") from error
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""] or fields[0].startswith("#") or (not starts and fields == ["seconds", "gbps"]):
            continue
        try:
            seconds, gbps = (float(field) for field in fields)
            start, speed = round(real("seconds", seconds) * NS_PER_S), _bytes_per_s(gbps)
        except ValueError:
            raise TraceError(
                f"{path}:{number}: got {line[:40]!r}, expected seconds,gbps as in 0.5,3.0"
            ) from None
        if starts and start <= starts[-1]:
            raise TraceError(f"{path}:{number}: {fields[0]} s is not later than the line above")
        starts.append(start)
        speeds.append(speed)
    if not starts:
        raise TraceError(f"{path}: no line of seconds,gbps")
    return Bandwidth((0, *starts[1:]), tuple(speeds))


def _bytes_per_s(gbps: float) -> int:
    return max(1, round(real("bytes_per_s", real("gbps", gbps, above=True) * BYTES_PER_GBIT)))
