"""What an explorer's function returns: a picture, its title, its numbers, and where they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvlib.errors import ConfigError
from kvlib.explore.controls import spell

SIGNIFICANT_DIGITS = 5

COMPUTED = "computed here by kvlib"
SIMULATED = "simulated here by kvlib"
MEASURED = "measured here"


def reported(source: str) -> str:
    """The label of numbers that somebody else published.

    >>> reported("Kwon et al. 2023, figure 2")
    'reported by Kwon et al. 2023, figure 2'
    """
    return f"reported by {source}"


@dataclass(frozen=True)
class View:
    """One state of an explorer.

    Parameters
    ----------
    title : str
        The finding in one sentence, for this state.
    picture : dict or str
        A plotly figure as a dictionary, or the text of an SVG drawing.
    table : sequence of rows
        The key numbers: the first row is the heading. Numbers are spelt with thousands
        separators; strings stand as they are.
    source : str
        `COMPUTED`, `SIMULATED`, `MEASURED` or ``reported(...)``.
    note : str
        A sentence or two under the picture: what to notice, or a limit of validity.
    numbers : mapping
        Named raw numbers of this state, for tests and for ``expects``.

    Examples
    --------
    >>> table = [["tokens", "blocks"], [100, 7]]
    >>> view = View("100 tokens take 7 blocks", {"data": [], "layout": {}}, table, COMPUTED)
    >>> view.to_dict()["title"]
    '100 tokens take 7 blocks'
    """

    title: str
    picture: dict | str
    table: Sequence[Sequence]
    source: str
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict:
        """Plain JSON values, floats rounded to five significant digits."""
        kind = "svg" if isinstance(self.picture, str) else "plotly"
        return {
            "title": self.title,
            "kind": kind,
            "picture": self.picture if kind == "svg" else rounded(self.picture),
            "table": [[cell_text(cell) for cell in row] for row in self.table],
            "source": self.source,
            "note": self.note,
            "numbers": rounded(dict(self.numbers)),
        }

    def text(self) -> str:
        """The text face: title and table, the same on every machine."""
        return f"{self.title}\n\n{table_text(self.table)}"


def sentence(words: str) -> str:
    """`words` with a capital and a full stop.

    >>> sentence("reported by Kwon et al. 2023")
    'Reported by Kwon et al. 2023.'
    """
    return f"{words[0].upper()}{words[1:]}."


def round_float(value: float) -> float:
    """`value` to five significant digits, so that last-place differences between machines vanish."""
    if not math.isfinite(value):
        raise ConfigError(f"a picture holds {value}, expected finite numbers")
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    # 3.0 and 3 would be two different JSON texts for one number.
    return int(short) if short == int(short) and abs(short) < 2**53 else short


def rounded(value):
    """Every float inside `value` rounded; tuples become lists.

    >>> rounded({"y": (0.1234567, 2.0)})
    {'y': [0.12346, 2]}
    """
    if isinstance(value, float):
        return round_float(value)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def dumps(value) -> str:
    """The one JSON text of `value`: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def cell_text(cell) -> str:
    """Spell one table cell.

    >>> cell_text(819200), cell_text(0.123456), cell_text(23.0), cell_text("8 of 8")
    ('819,200', '0.1235', '23', '8 of 8')
    """
    return spell(float(f"{cell:.4g}")) if isinstance(cell, float) else spell(cell)


def table_text(table: Sequence[Sequence]) -> str:
    """Align `table` in columns: words to the left, numbers to the right.

    >>> print(table_text([["policy", "held"], ["max", 6], ["paged", 25]]))
    policy | held
    max    |    6
    paged  |   25
    """
    cells = [[cell_text(cell) for cell in row] for row in table]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    numeric = [all(_is_number(row[i]) for row in table[1:]) for i in range(len(widths))]

    def line(row):
        padded = [t.rjust(w) if n else t.ljust(w) for t, w, n in zip(row, widths, numeric)]
        return " | ".join(padded).rstrip()

    return "\n".join(line(row) for row in cells)


def _is_number(cell) -> bool:
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)
