"""The glossary where its words are used.

The first time a page uses a word of the glossary, the word becomes a link to its entry, with the definition as the
link's title. Pages need no markup for it. A link can be reached by mouse, keyboard and finger alike, and without the
title's tooltip it still leads to the definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from docutils import nodes
from sphinx import addnodes

GLOSSARY = "book/reference/glossary"
# Pages for looking things up name terms all the time; only pages for reading explain them.
NOT_FOR_READING = ("book/reference/", "book/bibliography", "genindex", "search")
# Entries whose word also has an everyday meaning, so that a link on its first use would often be wrong.
EVERYDAY = {"hit", "lane", "level", "link", "miss", "page", "placement", "pull", "state", "step", "swap", "value", "window"}
# A word in one of these is a name, a heading, a formula or already a link.
UNTOUCHED = (nodes.title, nodes.rubric, nodes.caption, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, nodes.raw)


@dataclass(frozen=True)
class Entry:
    """One entry of the glossary: its place on the page and its text."""

    anchor: str
    definition: str


@dataclass(frozen=True)
class Glossary:
    """The entry of every spelling of every term, and one pattern that finds them all."""

    entries: dict[str, Entry]
    pattern: re.Pattern


def one_line(text: str) -> str:
    return " ".join(text.split())


def spellings(term: str) -> list[str]:
    """The term and its plurals, in small letters."""
    word = one_line(term).lower()
    plurals = [word + "s", word + "es"]
    return [word, *plurals, word[:-1] + "ies"] if word.endswith("y") else [word, *plurals]


def pattern_of(words: list[str]) -> re.Pattern:
    """Finds any of these whole words, the longest first, also where a line breaks inside one."""
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in longest_first)
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])", re.IGNORECASE)


def read_glossary(doctree: nodes.document) -> Glossary:
    """All terms of the page; several terms may share one definition."""
    entries = {}
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            terms = list(item.findall(nodes.term))
            entry = Entry(terms[0]["ids"][0], one_line(next(item.findall(nodes.definition)).astext()))
            for term in terms:
                if one_line(term.astext()).lower() not in EVERYDAY:
                    entries.update(dict.fromkeys(spellings(term.astext()), entry))
    return Glossary(entries, pattern_of(list(entries)))


def is_prose(text: nodes.Text) -> bool:
    parent = text.parent
    while parent is not None:
        if isinstance(parent, UNTOUCHED):
            return False
        parent = parent.parent
    return True


def join_lines(doctree: nodes.document) -> None:
    """Markdown leaves one text node per source line; a term may begin in one and end in the next."""
    for parent in list(doctree.findall(nodes.TextElement)):
        joined = []
        for child in parent.children:
            if joined and isinstance(child, nodes.Text) and isinstance(joined[-1], nodes.Text):
                joined[-1] = nodes.Text(joined[-1] + child)
            else:
                joined.append(child)
        parent.children = []
        parent.extend(joined)


def linked(text: str, glossary: Glossary, address: str, seen: set[Entry]) -> Iterator[nodes.Node]:
    """The text in pieces, with a link for each entry that is not in `seen` yet."""
    done = 0
    for match in glossary.pattern.finditer(text):
        entry = glossary.entries[one_line(match.group()).lower()]
        if entry in seen:
            continue
        seen.add(entry)
        yield nodes.Text(text[done:match.start()])
        yield nodes.reference(
            "", match.group(), internal=True, refuri=f"{address}#{entry.anchor}", reftitle=entry.definition, classes=["kv-term"]
        )
        done = match.end()
    yield nodes.Text(text[done:])


def link_first_uses(doctree: nodes.document, glossary: Glossary, address: str) -> None:
    """Link the first use of each term in the page's prose to the glossary at `address`."""
    join_lines(doctree)
    seen: set[Entry] = set()
    for text in list(doctree.findall(nodes.Text)):
        if is_prose(text):
            text.parent.replace(text, list(linked(text, glossary, address, seen)))


def find_glossary(app, env) -> None:
    app.kv_glossary = read_glossary(env.get_doctree(GLOSSARY)) if GLOSSARY in env.found_docs else None


def link_page(app, doctree, docname) -> None:
    if app.kv_glossary and app.builder.format == "html" and not docname.startswith(NOT_FOR_READING):
        link_first_uses(doctree, app.kv_glossary, app.builder.get_relative_uri(docname, GLOSSARY))


def setup(app):
    app.add_css_file("reference.css")
    app.connect("env-check-consistency", find_glossary)
    app.connect("doctree-resolved", link_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
