"""Re-execute and normalize notebooks, so that a re-run changes nothing that does not matter.

    python tools/notebooks.py                       all of notebooks/, executed and normalized
    python tools/notebooks.py --no-execute FILE …   normalize only

Removed: widget state and views (random ids, megabytes), execution times, private kernel names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}


def normalize(notebook) -> None:
    """Drop from `notebook`, in place, what differs between two runs or two machines."""
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = merge_streams(cell.outputs)
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET_VIEW, None)
            output.pop("transient", None)


def merge_streams(outputs: list) -> list:
    """One output per run of prints: how a stream is cut into pieces differs from run to run."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def execute(notebook, path: Path) -> None:
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--no-execute", action="store_true")
    options = parser.parse_args()
    for path in options.files:
        if not path.is_file():
            parser.error(f"{path}: no such notebook")
    files = options.files or sorted((ROOT / "notebooks").glob("*.ipynb"))
    for number, path in enumerate(files, start=1):
        print(f"[{number}/{len(files)}] {path.name}", file=sys.stderr, flush=True)
        notebook = nbformat.read(path, as_version=4)
        if not options.no_execute:
            execute(notebook, path)
        normalize(notebook)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
