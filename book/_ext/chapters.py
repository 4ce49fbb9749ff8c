"""What the chapters say about themselves, read from their notebooks: question, time, prerequisites, exercises, ledger.

The front pages show it, so nothing there can go stale. A chapter that does not say it stops the build.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import yaml

from kvlib.errors import ConfigError
from kvlib.explore import EXERCISES
from kvlib.ledger import Line, read_ledger

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"""show\(["']([\w.]+)["']\)""")
FIGURES = ROOT / "kvlib" / "figures"
# Explorers may import from any room, which says nothing about what a room is built on.
PICTURES = {"explore", "figures"}


@dataclass(frozen=True)
class Chapter:
    """One notebook.

    Attributes
    ----------
    doc : str
        Its document name, as in ``"notebooks/01_kv_cache"``.
    cells : list of dict
        The notebook's cells.
    """

    doc: str
    cells: list

    @property
    def number(self) -> int:
        return int(Path(self.doc).name[:2])

    @cached_property
    def title(self) -> str:
        return self._find(rf"^# {self.number} · (.+: .+)$", f"a title '# {self.number} · Name: Question?'")

    @property
    def name(self) -> str:
        """A few words: the title up to its colon."""
        return self.title.partition(": ")[0]

    @property
    def question(self) -> str:
        return self.title.partition(": ")[2]

    @cached_property
    def minutes(self) -> int:
        return int(self._find(r"\*\*Time:\*\* (\d+) minutes", "'**Time:** NN minutes'"))

    @cached_property
    def before(self) -> str:
        """The paragraph about prerequisites, in Markdown."""
        return self._find(r"(?s)\*\*Before you start:\*\* (.+?)(?=\n\n|\*\*Time:|\Z)", "'**Before you start:** …'")

    @cached_property
    def needs(self) -> list[str]:
        """The documents and chapters that `before` names, without repeats, in its order."""
        found = []
        for link, numbers in re.findall(r"\]\(([^)#]+)|chapters? (\d+(?:(?:, | and )\d+)*)(?![\d\]])", self.before):
            docs = [posixpath.normpath("notebooks/" + posixpath.splitext(link)[0])] if link else []
            docs += [doc_of(int(n)) for n in re.findall(r"\d+", numbers)]
            found += [doc for doc in docs if doc not in found]
        return found

    @property
    def exercises(self) -> int:
        """How many exercises check themselves."""
        return sum(EXERCISES.find(item) is not None for cell in self.cells for item in SHOWN.findall(_source(cell)))

    @property
    def ledger_heading(self) -> str:
        return _source(self.cells[self._ledger_at]).splitlines()[0].removeprefix("## ")

    @cached_property
    def ledger(self) -> list[Line]:
        """The lines that the chapter's ledger prints. nbval holds the stored output to what the code prints."""
        following = self.cells[self._ledger_at + 1:]
        printed = next((cell["outputs"] for cell in following if cell["cell_type"] == "code"), [])
        return read_ledger("".join("".join(output.get("text", "")) for output in printed))

    @property
    def _ledger_at(self) -> int:
        for i, cell in enumerate(self.cells):
            if _source(cell).startswith("## The ledger"):
                return i
        raise ConfigError(f"{self.doc}: no cell begins with '## The ledger'")

    @cached_property
    def rooms(self) -> set[str]:
        """The rooms of kvlib that the chapter's cells and its figures import by name."""
        sources = [_source(cell) for cell in self.cells if cell["cell_type"] == "code"]
        stem = Path(self.doc).name[3:]
        sources += [path.read_text(encoding="utf-8") for path in sorted(FIGURES.glob(f"{stem}*.py"))]
        return {room for source in sources for room in imported_rooms(source)}

    def _find(self, pattern: str, expected: str) -> str:
        text = "\n\n".join(_source(cell) for cell in self.cells[:2] if cell["cell_type"] == "markdown")
        found = re.search(pattern, text, re.MULTILINE)
        if not found:
            raise ConfigError(f"{self.doc}: the first cell says nothing that looks like {expected}")
        return " ".join(found[1].split())


def _source(cell: dict) -> str:
    return "".join(cell["source"])


def chapters() -> list[Chapter]:
    return [
        Chapter(f"notebooks/{path.stem}", json.loads(path.read_text(encoding="utf-8"))["cells"])
        for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    ]


def doc_of(number: int) -> str:
    found = sorted((ROOT / "notebooks").glob(f"{number:02}_*.ipynb"))
    if not found:
        raise ConfigError(f"chapter: got {number}, expected a chapter of this book")
    return f"notebooks/{found[0].stem}"


def parts() -> dict[str, str]:
    """The caption of the part that each document stands in, from the table of contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return {entry["file"]: part["caption"] for part in toc.get("parts", []) for entry in part["chapters"]}


def imported_rooms(source: str) -> set[str]:
    """The rooms (``blocks``, ``specs``, …) that Python source imports; a line for IPython is skipped.

    >>> sorted(imported_rooms("from kvlib.blocks import BlockManager\\nfrom kvlib.cost import prefill_s"))
    ['blocks', 'cost']
    """
    plain = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))
    imports = [node.module for node in ast.walk(ast.parse(plain)) if isinstance(node, ast.ImportFrom) and node.module]
    return {module.split(".")[1] for module in imports if module.startswith("kvlib.")}


def rooms_below(rooms: set[str]) -> set[str]:
    """`rooms` and every room they import, directly or through others."""
    reached, waiting = set(), sorted(rooms - PICTURES)
    while waiting:
        room = waiting.pop()
        if room not in reached:
            reached.add(room)
            waiting += sorted(imports_of_room(room))
    return reached


@cache
def imports_of_room(room: str) -> frozenset[str]:
    folder = ROOT / "kvlib" / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    found = {other for path in files for other in imported_rooms(path.read_text(encoding="utf-8"))}
    return frozenset(found - PICTURES)
