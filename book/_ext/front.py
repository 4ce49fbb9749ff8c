"""Directives that know what stands where: chapters, their map, the ledger of both users, the two indexes."""

from __future__ import annotations

import re
from functools import cache
from html import escape

from chapter_map import chapter_map
from chapters import ROOT, SHOWN, Chapter, chapters, parts
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from kvlib.errors import ConfigError
from kvlib.explore import EXERCISES, REGISTRY
from kvlib.explore.view import sentence
from kvlib.figures.questions import QUESTIONS, Answer, answer
from kvlib.ledger import USERS

EXPLORER_IN_MARKDOWN = re.compile(r"```\{(?:explorer|exercise-check)\} ([\w.]+)")

# Three numbers for each of the two users.
LEDGER_HEAD = (
    '<thead><tr><th scope="col" rowspan="2">Chapter</th>'
    + "".join(f'<th scope="colgroup" colspan="2">{what}</th>' for what in ("Requests held", "Prefill tokens saved", "TTFT (ms)"))
    + '<th scope="col" rowspan="2">What holds there</th></tr><tr>'
    + 3 * "".join(f'<th scope="col">{user.name}</th>' for user in USERS)
    + "</tr></thead>"
)


def table_row(cells: list[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


class FrontDirective(SphinxDirective):
    """What the directives here share: addresses as seen from this page, and HTML as a node."""

    def href(self, doc: str, fragment: str = "") -> str:
        return self.env.app.builder.get_relative_uri(self.env.docname, doc) + fragment

    def anchor(self, doc: str, words: str, fragment: str = "") -> str:
        return f'<a href="{escape(self.href(doc, fragment))}">{escape(words)}</a>'

    def html(self, text: str) -> nodes.raw:
        # What is shown lies outside the page's own source, so Sphinx must read the page anew at every build.
        self.env.note_reread()
        return nodes.raw("", text, format="html")

    def table(self, head: list[str], rows: list[list[str]], look: str = "kv-facts") -> nodes.raw:
        """A table whose cells are HTML already."""
        heading = "".join(f'<th scope="col">{cell}</th>' for cell in head)
        body = "".join(table_row(row) for row in rows)
        return self.html(
            f'<div class="{look}" tabindex="0"><table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>'
        )


class ChaptersDirective(FrontDirective):
    """``{chapters}`` lists the chapters; with ``:core:`` only their eight-minute cores."""

    option_spec = {"core": directives.flag}

    def run(self):
        found = chapters()
        if "core" in self.options:
            rows = [[self.link(c, "#play-first"), escape(c.question)] for c in found]
            return [self.table(["Chapter", "Play, then read to <em>The short answer</em>"], rows)]
        names = {c.doc: str(c.number) for c in found}
        rows = [
            [self.link(c), escape(c.question), str(c.minutes), str(c.exercises),
             ", ".join(self.anchor(doc, names.get(doc) or primer_title(doc)) for doc in c.needs)]
            for c in found
        ]
        head = ["Chapter", "The question it answers", "Minutes", "Self-checked exercises", "Read before it"]
        return [self.table(head, rows, "kv-facts kv-chapters")]

    def link(self, chapter: Chapter, fragment: str = "") -> str:
        return self.anchor(chapter.doc, f"{chapter.number} · {chapter.name}", fragment)


class MinutesDirective(FrontDirective):
    """``{chapter-minutes}`` is a sentence with the hours that the chapters ask for, added up."""

    def run(self):
        found = chapters()
        hours, exercises = sum(c.minutes for c in found) / 60, sum(c.exercises for c in found)
        text = f"The {len(found)} chapters take {hours:.0f} hours to read, and {exercises} exercises check themselves."
        return [nodes.paragraph("", text)]


class ChapterMapDirective(FrontDirective):
    """``{chapter-map}`` draws how the chapters build on one another and on three parts of kvlib."""

    def run(self):
        return [self.html(f'<div class="kv-map" tabindex="0">{chapter_map(chapters(), parts(), self.href)}</div>')]


class LedgerDirective(FrontDirective):
    """``{ledger}`` collects the lines that all chapters print; its body says what each assumes, a line ``N: words`` each."""

    has_content = True

    def run(self):
        notes = {int(number): words.strip() for number, _, words in (line.partition(":") for line in self.content if line.strip())}
        rows = [row for chapter in chapters() for row in self.rows_of(chapter, notes)]
        return [self.html(f'<div class="kv-facts kv-ledger" tabindex="0"><table>{LEDGER_HEAD}<tbody>{"".join(rows)}</tbody></table></div>')]

    def rows_of(self, chapter: Chapter, notes: dict[int, str]) -> list[str]:
        if chapter.number not in notes:
            raise ConfigError(f"ledger: got no line '{chapter.number}: …', expected one for every chapter")
        rows = []
        for variant in dict.fromkeys(line.variant for line in chapter.ledger):
            lines = {line.user: line for line in chapter.ledger if line.variant == variant}
            pair = [lines[user.name] for user in USERS]
            name = f"{chapter.number} · {chapter.name}" + (f": {variant}" if variant else "")
            numbers = [getattr(line, name) for name in ("requests_held", "prefill_tokens_saved", "ttft_ms") for line in pair]
            said = escape(notes[chapter.number]) if not rows else "as above"
            place = "#" + nodes.make_id(chapter.ledger_heading)
            rows.append(table_row([self.anchor(chapter.doc, name, place), *numbers, said]))
        return rows


class ExplorerIndexDirective(FrontDirective):
    """``{explorer-index}`` lists every explorer and exercise of the book, each a link to its place."""

    def run(self):
        named = {**REGISTRY, **EXERCISES}
        rows = [[self.anchor(place_of(item), item, f"#kv={item}"), escape(named[item].title)] for item in named]
        return [self.table(["id", "title"], rows)]


class QuestionIndexDirective(FrontDirective):
    """``{question-index}`` lists the questions with the number that answers each."""

    def run(self):
        rows = [
            [self.anchor("book/questions", found.question.texts.question, f"#{anchor_of(found)}"), escape(found.text),
             self.anchor(place_of(found.question.explorer_id), "open", found.question.link)]
            for found in answers()
        ]
        return [self.table(["Question", "Answer, for the case stated below", "Explorer"], rows)]


class QuestionsDirective(FrontDirective):
    """``{questions}`` answers every question in a section of its own."""

    def run(self):
        return [self.section(found) for found in answers()]

    def section(self, found: Answer) -> nodes.section:
        question = found.question
        section = nodes.section(ids=[anchor_of(found)], names=[anchor_of(found)])
        section += nodes.title("", question.texts.question)
        section += self.html(
            f'<p class="kv-answer"><strong>{escape(found.text)}.</strong> {escape(sentence(found.finding))} '
            f'<span class="kv-source">{escape(sentence(found.source))}</span> '
            f'{self.anchor(place_of(question.explorer_id), "Open the explorer in this state", question.link)}.</p>'
        )
        section += self.html(f"<p>The case: {escape(question.case)}.</p>")
        moved = "".join(f"<li>{escape(swing.sentence)}.</li>" for swing in found.swings)
        section += self.html(f"<p>What moves the answer most, each over the range of its control:</p><ul>{moved}</ul>")
        words = question.texts
        markdown = [f"**vLLM:** {words.vllm}", "", f"**SGLang:** {words.sglang}", "", f"**To check it:** {words.log}"]
        self.state.nested_parse(StringList(markdown, "question_texts"), 0, section)
        return section


@cache
def answers() -> tuple[Answer, ...]:
    return tuple(answer(question) for question in QUESTIONS.values())


def anchor_of(found: Answer) -> str:
    return "question-" + found.question.id.replace("_", "-")


@cache
def places() -> dict[str, str]:
    """Explorer or exercise → the document it stands in; a chapter goes before a page that shows it again."""
    found = {}
    for path in sorted((ROOT / "book").rglob("*.md")):
        for item in EXPLORER_IN_MARKDOWN.findall(path.read_text(encoding="utf-8")):
            found[item] = path.relative_to(ROOT).with_suffix("").as_posix()
    for chapter in chapters():
        for cell in chapter.cells:
            for item in SHOWN.findall("".join(cell["source"])):
                found[item] = chapter.doc
    return found


def place_of(item_id: str) -> str:
    if item_id not in places():
        raise ConfigError(f"explorer: got {item_id!r}, expected one that stands on a page")
    return places()[item_id]


def primer_title(doc: str) -> str:
    first = (ROOT / doc).with_suffix(".md").read_text(encoding="utf-8").splitlines()[0]
    return first.lstrip("# ")


def setup(app):
    app.add_directive("chapters", ChaptersDirective)
    app.add_directive("chapter-minutes", MinutesDirective)
    app.add_directive("chapter-map", ChapterMapDirective)
    app.add_directive("ledger", LedgerDirective)
    app.add_directive("explorer-index", ExplorerIndexDirective)
    app.add_directive("question-index", QuestionIndexDirective)
    app.add_directive("questions", QuestionsDirective)
    return {"version": "1", "parallel_read_safe": True}
