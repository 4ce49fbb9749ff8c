"""Azure CSV: calendar time with seven fraction digits, prompt and generated tokens.

Source: Azure/AzurePublicDataset, AzureLLMInferenceTrace 2023 and 2024. There is no prefix information.
"""

import re
from datetime import datetime, timedelta, timezone

from kvlib.errors import ConfigError
from kvlib.workloads.csv_rows import ColumnReader, parse_whole
from kvlib.workloads.request import Request

STAMP = re.compile(
    r"(?P<second>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(\.(?P<fraction>[0-9]{1,9}))?(\+00:00)?"
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class AzureReader:
    """Turns lines into requests whose arrival counts, for now, from 1970; ``read_trace`` moves it.

    Examples
    --------
    >>> reader = AzureReader(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
    >>> request = reader.parse("1970-01-01 00:00:46.6805900,374,44")
    >>> request.arrival_s, request.num_input_tokens, request.num_output_tokens
    (46.68059, 374, 44)
    """

    name = "azure"
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    block_size = None
    is_calendar_time = True

    def __init__(self, header: list[str]):
        self._columns = ColumnReader(header, wanted=self.columns)

    def parse(self, line: str) -> Request:
        """Return the ``Request`` of one line; raise ``ConfigError`` if the line is not a valid row."""
        stamp, context_tokens, generated_tokens = self._columns.pick(line)
        return Request(
            _us_since_1970(stamp) / 1e6,
            parse_whole("ContextTokens", context_tokens),
            parse_whole("GeneratedTokens", generated_tokens),
        )


def _us_since_1970(stamp):
    match = STAMP.fullmatch(stamp)
    try:
        second = datetime.fromisoformat(match["second"] + "+00:00")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"TIMESTAMP: got {stamp!r}, expected a UTC time like 2023-11-16 18:15:46.6805900"
        ) from error
    # datetime keeps six digits and drops the seventh; round it instead.
    fraction_ns = int((match["fraction"] or "0").ljust(9, "0"))
    return (second - EPOCH) // timedelta(microseconds=1) + round(fraction_ns / 1000)
