"""The table every chapter ends its argument with: the paper, the lecture and this book side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.explore.view import table_text

# What a page shows without a scroll bar.
REASON_WIDTH = 84


@dataclass(frozen=True)
class Compared:
    """One quantity. `paper` and `lecture` are what others printed ("–" where they did not); `ours` is computed."""

    quantity: str
    ours: float | str
    paper: str = "–"
    lecture: str = "–"
    why: str = ""


def comparison(rows: Sequence[Compared]) -> str:
    """The table as aligned text, with the reasons where figures differ underneath.

    >>> print(comparison([Compared("requests held", 6, paper="7", why="The paper has 15.7K slots.")]))
    quantity      | paper | lecture | this book
    requests held | 7     | –       |         6
    <BLANKLINE>
    requests held: The paper has 15.7K slots.
    """
    table = [["quantity", "paper", "lecture", "this book"]]
    table += [[row.quantity, row.paper, row.lecture, row.ours] for row in rows]
    reasons = [_wrapped(f"{row.quantity}: {row.why}") for row in rows if row.why]
    return "\n".join([table_text(table), *([""] if reasons else []), *reasons])


def _wrapped(reason: str) -> str:
    return textwrap.fill(" ".join(reason.split()), REASON_WIDTH, subsequent_indent="  ")
