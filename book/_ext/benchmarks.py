"""``{benchmarks} targets`` (machine, limits, peers): the tables of the page *Benchmarks*, from what ``make bench`` wrote."""

from __future__ import annotations

import json
from html import escape
from itertools import groupby
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from kvlib.explore.page import table_html
from kvlib.explore.view import cell_text

DATA = Path(__file__).resolve().parents[1] / "reference" / "benchmarks.json"
FRAME_MS = 1000 / 60
PARTS = {
    "blocks": "Block manager and buddies", "book": "The book", "cachegen": "CacheGen", "cluster": "Clusters", "explorers": "Explorers",
    "prefix": "Prefix caching", "serving": "Serving", "strata": "Strata", "tensors": "Tensors",
}
FRAMED = ("explorers.kernel", "explorers.kernel_slowest", "explorers.browser", "explorers.browser_slowest", "explorers.star")


def times_target(speed: dict) -> float | None:
    """How many times better than its target a speed is; above 1 it is met."""
    if speed["target"] is None:
        return None
    return speed["value"] / speed["target"] if speed["more_is_better"] else speed["target"] / speed["value"]


def shortened(value: float) -> float:
    return float(f"{value:.3g}")


def spelled(value: float, unit: str) -> str:
    return f"{cell_text(float(value))} {unit}"


def target_row(speed: dict) -> str:
    times, unit = times_target(speed), speed["unit"]
    if times is None:
        target = against = "–"
    else:
        target = f"{'at least' if speed['more_is_better'] else 'at most'} {spelled(speed['target'], unit)}"
        words = f"{cell_text(shortened(times))} times better" if times >= 1 else f"missed: reaches {100 * times:.0f} %"
        against = f'<div class="kv-times" style="--kv-times: {times:.3g}">{words}</div>'
    cells = (escape(speed["what"]), escape(spelled(speed["value"], unit)), escape(target), against)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def targets_html(data: dict) -> str:
    headings = ("what", "measured", "target", "against the target")
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = ""
    for part, speeds in groupby(data["speeds"], key=lambda speed: speed["id"].split(".")[0]):
        rows = "".join(map(target_row, speeds))
        body += f'<tbody><tr><th colspan="4" scope="rowgroup">{PARTS[part]}</th></tr>{rows}</tbody>'
    return f"<table><thead><tr>{head}</tr></thead>{body}</table>"


def machine_table(data: dict) -> list[list[str]]:
    machine = data["machine"]
    return [
        ["machine", "as the run found it"],
        ["processor", f"{machine['processor']}, {machine['cores']} cores"],
        ["memory", f"{machine['memory_gib']} GiB, copied at {machine['memory_bytes_per_s'] / 1e9:.3g} GB/s by one thread"],
        ["software", f"{machine['system']}, Python {machine['python']}"],
        ["load when the run began", f"{machine['load']} programs at once, averaged over a minute"],
        ["date", machine["date"]],
    ]


def limits_table(data: dict) -> list[list[str]]:
    """Speeds beside what no program can pass: the next repaint of a screen, and the memory under the processor."""
    speeds = {speed["id"]: speed for speed in data["speeds"]}
    rows = [["what", "measured", "limit", "measured ÷ limit"]]
    for speed in (speeds[name] for name in FRAMED):
        share = speed["value"] / FRAME_MS
        rows.append([speed["what"], spelled(speed["value"], "ms"), f"one frame, {FRAME_MS:.1f} ms", f"{share:.2g}"])
    attention, limit = speeds["tensors.bytes"], data["machine"]["memory_bytes_per_s"] / 1e9
    measured = spelled(attention["value"], attention["unit"])
    rows.append([attention["what"], measured, f"memory, {limit:.3g} GB/s", f"{attention['value'] / limit:.2g}"])
    return rows


def peers_table(data: dict) -> list[list[str]]:
    speeds = {speed["id"]: speed for speed in data["speeds"]}
    rows = [["what", "this book (measured)", "others (reported)", "ratio"]]
    for peer in data["peers"]:
        speed = speeds[peer["speed"]]
        figures = sorted({peer["low"], peer["high"]})
        ratios = sorted({f"{speed['value'] / figure:.2g}" for figure in figures}, key=float)
        others = f"{' to '.join(cell_text(float(f)) for f in figures)} {speed['unit']}: {peer['who']}"
        rows.append([speed["what"], spelled(speed["value"], speed["unit"]), others, " to ".join(ratios)])
    return rows


def verdict_html(data: dict) -> str:
    """How many targets were met, and which were not."""
    times = {speed["what"]: times_target(speed) for speed in data["speeds"] if speed["target"] is not None}
    missed = [f"{escape(what)} ({100 * share:.0f} %)" for what, share in times.items() if share < 1]
    words = f"{len(times) - len(missed)} of {len(times)} targets are met."
    return f"<p>{words}{' Not met: ' + '; '.join(missed) + '.' if missed else ''}</p>"


TABLES = {
    "verdict": verdict_html,
    "machine": lambda data: table_html(machine_table(data)),
    "targets": targets_html,
    "limits": lambda data: table_html(limits_table(data)),
    "peers": lambda data: table_html(peers_table(data)),
}


class BenchmarksDirective(SphinxDirective):
    required_arguments = 1

    def run(self):
        self.env.note_dependency(str(DATA))
        table = TABLES[self.arguments[0]](json.loads(DATA.read_text(encoding="utf-8")))
        return [nodes.raw("", f'<div class="kv-facts" tabindex="0">{table}</div>', format="html")]


def setup(app):
    app.add_css_file("reference.css")
    app.add_directive("benchmarks", BenchmarksDirective)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
