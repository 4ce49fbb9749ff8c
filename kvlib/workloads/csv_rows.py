"""Rows of a CSV trace: columns found by name, numbers read without guessing."""

import csv
import re
from collections.abc import Sequence

from kvlib.errors import ConfigError

# float() would also take "nan", "1_000" and digits of other scripts.
DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def split_fields(line: str) -> list[str]:
    """Return the fields of one CSV line, without surrounding blanks.

    Raises
    ------
    ConfigError
        If a quote is left open.

    Examples
    --------
    >>> split_fields('5, "GPT-4, chat",7')
    ['5', 'GPT-4, chat', '7']
    """
    try:
        (fields,) = csv.reader([line], strict=True, skipinitialspace=True)
    except (csv.Error, ValueError) as error:
        raise ConfigError(f"not a CSV row: {error}") from error
    return [field.strip() for field in fields]


class ColumnReader:
    """Picks the wanted columns out of rows, wherever the header put them.

    Raises
    ------
    ConfigError
        If a wanted column is missing or stands twice.

    Examples
    --------
    >>> ColumnReader(["id", "tokens", "time"], wanted=["time", "tokens"]).pick("a,7,0.5")
    ['0.5', '7']
    """

    def __init__(self, header: list[str], wanted: Sequence[str]):
        if any(header.count(name) != 1 for name in wanted):
            raise ConfigError(f"header: got {', '.join(header)}; expected each of {', '.join(wanted)} once")
        self._num_columns = len(header)
        self._indexes = [header.index(name) for name in wanted]

    def pick(self, line: str) -> list[str]:
        """Return the wanted fields of ``line`` as text; a row of another width is a ``ConfigError``."""
        fields = split_fields(line)
        if len(fields) != self._num_columns:
            raise ConfigError(
                f"row: got {len(fields)} columns, expected {self._num_columns} as in the header"
            )
        return [fields[index] for index in self._indexes]


def parse_whole(name: str, text: str) -> int:
    """Return ``text`` as an int; anything but ASCII digits is a ``ConfigError``.

    Examples
    --------
    >>> parse_whole("tokens", "374")
    374
    """
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name}: got {text!r}, expected a whole number")
    return int(text)


def parse_decimal(name: str, text: str) -> float:
    """Return ``text`` as a float; a sign, ``nan`` or ``inf`` is a ``ConfigError``.

    Examples
    --------
    >>> parse_decimal("seconds", "5.25")
    5.25
    """
    if not DECIMAL.fullmatch(text):
        raise ConfigError(f"{name}: got {text!r}, expected a number of at least 0")
    return float(text)
