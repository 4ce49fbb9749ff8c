"""The file a reader dropped, as the functions that cache its content see it."""

from __future__ import annotations

import os


def file_stamp(path: str) -> tuple[float, int] | None:
    """When `path` was changed and its size, so that a new file of the same name is read again.

    None where there is no such file: the reader then says so with an error of its own.

    >>> file_stamp("/no/such/file")
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime, found.st_size
