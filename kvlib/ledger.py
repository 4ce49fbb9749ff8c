"""Two users followed through the whole book, and the three numbers each chapter leaves them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.cost import prefill_s
from kvlib.errors import ConfigError
from kvlib.explore.view import table_text
from kvlib.specs import get_gpu, get_model
from kvlib.specs.capacity import requests_held

MODEL = "llama-3-8b"
GPU = "a100-80gb"


@dataclass(frozen=True)
class User:
    """A workload by its mean lengths."""

    name: str
    num_input_tokens: int
    num_output_tokens: int
    source: str

    @property
    def final_tokens(self) -> int:
        return self.num_input_tokens + self.num_output_tokens


SHORT_CHAT = User("short chat", 161, 338, "ShareGPT means, Kwon et al. 2023, figure 11")
LONG_DOCUMENT = User("long document", 8590, 182, "Mooncake trace means, lecture 7, section 8.4")
USERS = (SHORT_CHAT, LONG_DOCUMENT)
HEADING = ["user", "in / out", "requests held", "prefill tokens saved", "TTFT (ms)"]


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    user: User
    requests_held: float
    prefill_tokens_saved: float
    ttft_s: float


def ideal_entry(user: User) -> Entry:
    """Chapter 1: memory packed perfectly, nothing reused, an idle GPU.

    Examples
    --------
    >>> ideal_entry(SHORT_CHAT).requests_held > ideal_entry(LONG_DOCUMENT).requests_held
    True
    """
    model, gpu = get_model(MODEL), get_gpu(GPU)
    held = requests_held(model, gpu, user.final_tokens)
    return Entry(user, held, 0, prefill_s(model, gpu, user.num_input_tokens))


def ledger(entries: Sequence[Entry]) -> str:
    """The entries as a text table.

    Examples
    --------
    >>> print(ledger([Entry(SHORT_CHAT, 800, 0, 0.0153)]))
    user       | in / out  | requests held | prefill tokens saved | TTFT (ms)
    short chat | 161 / 338 |           800 |                    0 |      15.3
    """
    rows = [
        [e.user.name, f"{e.user.num_input_tokens:,} / {e.user.num_output_tokens:,}", e.requests_held,
         e.prefill_tokens_saved, float(f"{1e3 * e.ttft_s:.3g}")]
        for e in entries
    ]
    return table_text([HEADING, *rows])


@dataclass(frozen=True)
class Line:
    """A printed line of a ledger, read back; its numbers stay spelt as they were printed."""

    user: str
    variant: str
    requests_held: str
    prefill_tokens_saved: str
    ttft_ms: str


def read_ledger(text: str) -> list[Line]:
    """The lines of the ledgers in what a chapter printed.

    A variant is what follows the user's name, or the words printed above the table. A second table with no words
    above it stands there for comparison and is left out.

    Raises
    ------
    ConfigError
        Where the text holds no ledger, or a line that is none.

    Examples
    --------
    >>> line, = read_ledger(ledger([Entry(SHORT_CHAT, 800, 0, 0.0153)]))
    >>> line.user, line.variant, line.requests_held, line.ttft_ms
    ('short chat', '', '800', '15.3')
    """
    lines, above, inside = [], "", False
    for row in text.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if cells == HEADING:
            inside = above or not lines
            title, above = above, ""
        elif len(cells) == 1:
            above, inside = row.strip(), False
        elif inside:
            lines.append(_line(cells, title))
    if not lines:
        raise ConfigError(f"ledger: got {text[:40]!r}, expected a table headed {' | '.join(HEADING)}")
    return lines


def _line(cells: list[str], title: str) -> Line:
    if len(cells) != len(HEADING):
        raise ConfigError(f"ledger: got the line {' | '.join(cells)!r}, expected {len(HEADING)} columns")
    user, _, variant = cells[0].partition(", ")
    if user not in {u.name for u in USERS}:
        known = ", ".join(u.name for u in USERS)
        raise ConfigError(f"ledger: got the user {user!r}, expected one of {known}")
    return Line(user, variant or title, *cells[2:])
