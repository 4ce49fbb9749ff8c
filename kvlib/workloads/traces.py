"""Read a real request trace: Mooncake JSONL, Azure CSV or BurstGPT CSV, plain or gzip."""

import warnings
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from os.path import basename

from kvlib.errors import ConfigError, TraceError
from kvlib.workloads.azure import AzureReader
from kvlib.workloads.burstgpt import BurstGptReader
from kvlib.workloads.csv_rows import split_fields
from kvlib.workloads.mooncake import DEFAULT_BLOCK_SIZE, MooncakeReader
from kvlib.workloads.request import Request
from kvlib.workloads.trace_lines import as_text, numbered_lines

CSV_READERS = (AzureReader, BurstGptReader)
# Outside these mean rates, in requests/s, the file's time unit was probably misread.
PLAUSIBLE_RATES = (0.01, 10_000)


@dataclass(frozen=True)
class Trace:
    """A request trace and what had to be left out of it.

    Attributes
    ----------
    name : str
        Name of the file, or of the generator.
    format : str
        ``"mooncake"``, ``"azure"``, ``"burstgpt"`` or ``"synthetic"``.
    requests : tuple of Request
        Ordered by arrival; requests of one instant stand in file order.
    block_size : int or None
        Tokens per block id, ``None`` without prefix information.
    num_failed : int
        Rows the log itself marks as failed requests; they are left out.
    problems : tuple of str
        One message per unreadable row that lenient reading skipped.
    """

    name: str
    format: str
    requests: tuple[Request, ...]
    block_size: int | None
    num_failed: int = 0
    problems: tuple[str, ...] = ()

    @property
    def dropped(self) -> int:
        """Number of rows left out, failed and unreadable ones together."""
        return self.num_failed + len(self.problems)

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s


def read_trace(
    path: str | PathLike,
    strict: bool = True,
    *,
    block_size: int | None = None,
    time_unit: str | None = None,
) -> Trace:
    """Read a trace file; its format is recognized from its content, not from its name.

    Parameters
    ----------
    path : str or os.PathLike
        A Mooncake JSONL, Azure CSV or BurstGPT CSV file, plain or gzip.
    strict : bool
        ``True`` stops at the first unreadable row. ``False`` skips such rows, counts them in
        ``.dropped`` and keeps their messages in ``.problems``. A file that is no trace at all is an
        error either way. Failed requests of BurstGPT are left out and counted either way.
    block_size : int, optional
        Tokens per block id of a Mooncake-format file; 512 if not given.
    time_unit : str, optional
        Unit of a Mooncake-format file's timestamps, ``"s"``, ``"ms"`` or ``"us"``; ``"ms"`` if not
        given. Azure writes calendar time and BurstGPT seconds.

    Returns
    -------
    Trace
        Arrivals in seconds: for Azure since the earliest row, otherwise as the file counts them.

    Raises
    ------
    TraceError
        If the file cannot be read; the message names the file, the line and what was expected.
    ConfigError
        If ``block_size`` or ``time_unit`` is not understood, or does not apply to this format.

    Warns
    -----
    UserWarning
        If the mean rate is below 0.01/s or above 10,000/s, as after mistaking the time unit.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "burst.csv")
    ...     with open(path, "w") as file:
    ...         _ = file.write("Timestamp,Request tokens,Response tokens\\n5,472,18\\n45,1087,0\\n")
    ...     trace = read_trace(path)
    >>> trace.format, len(trace.requests), trace.dropped
    ('burstgpt', 1, 1)
    """
    lines = numbered_lines(path)
    reader, lines = _recognize(path, lines, block_size, time_unit)
    requests, num_failed, problems = _read_rows(path, lines, reader, strict)
    if not requests:
        raise TraceError(
            f"{path}: no requests left ({num_failed} failed and {len(problems)} unreadable rows)"
        )
    if reader.is_calendar_time:
        requests = _counted_from_first(requests)
    # sorted() is stable, so requests of one instant keep their file order.
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
    trace = Trace(basename(path), reader.name, ordered, reader.block_size, num_failed, tuple(problems))
    _warn_of_odd_rate(trace)
    return trace


def _recognize(path, lines, block_size, time_unit):
    """Return the reader for this file and the lines that hold its rows."""
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: the file is empty, expected at least one request")
    number, content = first
    if content.lstrip().startswith(b"{"):
        block_size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
        reader = MooncakeReader(block_size, "ms" if time_unit is None else time_unit)
        return reader, chain([first], lines)
    try:
        reader = _csv_reader(split_fields(as_text(content)))
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
    for name, value in (("block_size", block_size), ("time_unit", time_unit)):
        if value is not None:
            raise ConfigError(f"{name}: got {value!r}, but the {reader.name} format fixes it; leave it out")
    return reader, lines


def _csv_reader(header):
    def num_known(reader):
        return len(set(reader.columns) & set(header))

    best = max(CSV_READERS, key=num_known)
    if not num_known(best):
        expected = "; ".join(f"{reader.name}: {', '.join(reader.columns)}" for reader in CSV_READERS)
        raise ConfigError(
            f"no known trace format: expected JSON objects (mooncake) or a header with {expected}"
        )
    return best(header)


def _read_rows(path, lines, reader, strict):
    requests, num_failed, problems = [], 0, []
    try:
        for number, content in lines:
            try:
                request = reader.parse(as_text(content))
            except ValueError as error:
                problem = TraceError(f"{path}, line {number}: {error}")
                if strict:
                    raise problem from error
                problems.append(str(problem))
                continue
            if request is None:
                num_failed += 1
            else:
                requests.append(request)
    except TraceError as error:  # strict, or the file itself breaks off
        if strict:
            raise
        problems.append(str(error))
    return requests, num_failed, problems


def _counted_from_first(requests):
    first_us = round(min(request.arrival_s for request in requests) * 1e6)
    return [
        replace(request, arrival_s=(round(request.arrival_s * 1e6) - first_us) / 1e6) for request in requests
    ]


def _warn_of_odd_rate(trace):
    if trace.duration_s == 0:
        return
    rate, (lowest, highest) = len(trace.requests) / trace.duration_s, PLAUSIBLE_RATES
    if not lowest <= rate <= highest:
        warnings.warn(
            f"{trace.name}: {rate:.3g} requests/s over {trace.duration_s:,.0f} s; is the time unit right?",
            stacklevel=3,
        )
