"""``{outside-links}``: every address outside the book that its pages link to, with the page, for the bibliography."""

from __future__ import annotations

from collections.abc import Iterator

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class outside_links(nodes.General, nodes.Element):
    """Stands for the list until all pages are read."""


class OutsideLinksDirective(SphinxDirective):
    def run(self):
        return [outside_links()]


def addresses(env, here: str) -> Iterator[tuple[str, str, str]]:
    """Address, words of the link and page, once each, page by page; `here` is left out."""
    seen = set()
    for docname in sorted(env.all_docs.keys() - {here}):
        for reference in env.get_doctree(docname).findall(nodes.reference):
            address = reference.get("refuri", "")
            if address.startswith(("http://", "https://")) and (docname, address) not in seen:
                seen.add((docname, address))
                yield address, reference.astext(), docname


def item(app, here: str, address: str, words: str, docname: str) -> nodes.list_item:
    title = app.env.titles[docname].astext()
    page = nodes.reference("", title, internal=True, refuri=app.builder.get_relative_uri(here, docname))
    shown = address.split("://", 1)[1]
    line = nodes.paragraph("", "", nodes.reference("", shown, refuri=address), nodes.Text(f" ({words}), in "), page)
    return nodes.list_item("", line)


def fill(app, doctree, docname) -> None:
    for placeholder in list(doctree.findall(outside_links)):
        items = [item(app, docname, *found) for found in addresses(app.env, docname)]
        placeholder.replace_self(nodes.bullet_list("", *items) if items else nodes.paragraph("", "None so far."))


def setup(app):
    app.add_node(outside_links)
    app.add_directive("outside-links", OutsideLinksDirective)
    app.connect("doctree-resolved", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
