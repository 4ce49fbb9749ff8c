"""The lines of a trace file: plain or gzip, with or without a byte-order mark, numbered from 1."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from os import PathLike

from kvlib.errors import ConfigError, TraceError

GZIP_MAGIC = b"\x1f\x8b"

# Downloads that are not what their name says, by how their first line begins.
IMPOSTORS = (
    (b"<", "an HTML or XML page (a download that did not follow a redirect?)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to (run `git lfs pull`)"),
    (b"PK\x03\x04", "a zip archive (unpack it first)"),
    (codecs.BOM_UTF16_LE, "UTF-16 text (save it as UTF-8)"),
    (codecs.BOM_UTF16_BE, "UTF-16 text (save it as UTF-8)"),
)


def numbered_lines(path: str | PathLike) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number, bytes)`` for every line of ``path`` that is not blank.

    Gzip is recognized by its first two bytes, not by the file's name; a UTF-8 byte-order mark, which
    some spreadsheets write, is removed.

    Raises
    ------
    TraceError
        If the file cannot be opened, begins like something that is no trace, or is a damaged gzip.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    _refuse_impostors(path, line)
                if line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(
            f"{path}, line {number + 1}: the gzip data is cut short or damaged ({error})"
        ) from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error


def as_text(line: bytes) -> str:
    """Return `line` as text.

    Raises
    ------
    ConfigError
        If it is not UTF-8, as in a binary file.

    Examples
    --------
    >>> as_text(b"5,472,18")
    '5,472,18'
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"got byte 0x{line[error.start]:02x}, expected text in UTF-8; is this a binary file?") from error


def _open(path):
    if not isinstance(path, (str, PathLike)):  # open() would take a number for a file that is open already
        raise TraceError(f"path: got {path!r}, expected the path of a trace file")
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
    except ValueError as error:  # a NUL or half a character, which no file name can hold
        raise TraceError(f"path: got {path!r}, expected the path of a trace file") from error
    return gzip.open(path, "rb") if is_gzip else open(path, "rb")


def _refuse_impostors(path, first_line):
    for beginning, description in IMPOSTORS:
        if first_line.lstrip().startswith(beginning):
            raise TraceError(f"{path}, line 1: this looks like {description}")
