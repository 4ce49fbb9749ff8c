"""Mooncake JSONL: one JSON object per line, with the chained block hashes of its prompt.

Source: kvcache-ai/Mooncake, FAST25-release/traces. ``timestamp`` is in milliseconds, and
``hash_ids`` holds one id per 512-token block of the input, the last block perhaps partial.
"""

import json

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.workloads.request import Request

US_PER_UNIT = {"s": 1_000_000, "ms": 1000, "us": 1}
DEFAULT_BLOCK_SIZE = 512
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def _refuse_constant(text):
    raise ConfigError(f"{text} is not a JSON number")


# Python's default decoder takes NaN and Infinity, which JSON does not know.
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


class MooncakeReader:
    """Turns lines into requests that carry their block ids.

    Parameters
    ----------
    block_size : int
        Tokens per block id; every row must have exactly ``ceil(input_length / block_size)`` ids.
    time_unit : str
        ``"ms"`` in Mooncake's files; ``"s"`` or ``"us"`` in others of the same layout.

    Raises
    ------
    ConfigError
        If either is not understood.

    Examples
    --------
    >>> line = '{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}'
    >>> request = MooncakeReader(block_size=512, time_unit="ms").parse(line)
    >>> request.arrival_s, request.num_input_tokens, request.num_output_tokens, request.block_ids
    (1.5, 600, 7, (0, 9))
    """

    name = "mooncake"
    is_calendar_time = False

    def __init__(self, block_size: int, time_unit: str):
        self.block_size = whole("block_size", block_size)
        if time_unit not in US_PER_UNIT:
            raise ConfigError(f"time_unit: got {time_unit!r}, expected one of {', '.join(US_PER_UNIT)}")
        self._us_per_unit = US_PER_UNIT[time_unit]

    def parse(self, line: str) -> Request:
        """Return the ``Request`` of one line; raise ``ConfigError`` if the line is not a valid row."""
        row = _decode_object(line)
        request = Request(
            self._seconds(row["timestamp"]), row["input_length"], row["output_length"], _ids(row["hash_ids"])
        )
        num_blocks = -(-request.num_input_tokens // self.block_size)
        if len(request.block_ids) != num_blocks:
            raise ConfigError(
                f"hash_ids: got {len(request.block_ids)} ids, expected {num_blocks} for "
                f"{request.num_input_tokens} input tokens in blocks of {self.block_size}"
            )
        return request

    def _seconds(self, timestamp):
        if type(timestamp) not in (int, float):
            raise ConfigError(f"timestamp: got {timestamp!r}, expected a number")
        try:
            return round(timestamp * self._us_per_unit) / 1e6
        except (OverflowError, ValueError) as error:
            raise ConfigError(f"timestamp: got {timestamp!r}, expected a finite number") from error


def _decode_object(line):
    try:
        row = _decode(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not a JSON object: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ConfigError("not a JSON object: nested too deeply") from error
    if type(row) is not dict:
        raise ConfigError(f"got a JSON {type(row).__name__}, expected an object with {', '.join(KEYS)}")
    missing = [key for key in KEYS if key not in row]
    if missing:
        raise ConfigError(f"{', '.join(missing)} missing; expected {', '.join(KEYS)}")
    return row


def _ids(hash_ids):
    if type(hash_ids) is not list:
        raise ConfigError(f"hash_ids: got {hash_ids!r}, expected a list of whole numbers")
    return tuple(hash_ids)
