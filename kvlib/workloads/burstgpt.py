"""BurstGPT CSV: seconds since the start of the log, request and response tokens.

Source: HPMLL/BurstGPT. A row with 0 response tokens is a request that failed, by its README. Later
releases add columns (Session ID, Elapsed time); columns may stand in any order.
"""

from kvlib.workloads.csv_rows import ColumnReader, parse_decimal, parse_whole
from kvlib.workloads.request import Request


class BurstGptReader:
    """Turns lines into requests, and failed requests into ``None``.

    Examples
    --------
    >>> reader = BurstGptReader(["Timestamp", "Model", "Request tokens", "Response tokens"])
    >>> request = reader.parse("5,ChatGPT,472,18")
    >>> request.arrival_s, request.num_input_tokens, request.num_output_tokens
    (5.0, 472, 18)
    >>> reader.parse("7,ChatGPT,472,0") is None
    True
    """

    name = "burstgpt"
    columns = ("Timestamp", "Request tokens", "Response tokens")
    block_size = None
    is_calendar_time = False

    def __init__(self, header: list[str]):
        self._columns = ColumnReader(header, wanted=self.columns)

    def parse(self, line: str) -> Request | None:
        """Return the ``Request`` of one line, or ``None`` if the log says that the request failed.

        Raises
        ------
        ConfigError
            If the line is not a valid row.
        """
        seconds, request_tokens, response_tokens = self._columns.pick(line)
        request = Request(
            round(parse_decimal("Timestamp", seconds), 6),
            parse_whole("Request tokens", request_tokens),
            parse_whole("Response tokens", response_tokens),
        )
        return request if request.num_output_tokens else None
