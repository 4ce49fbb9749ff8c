"""The page face: plain HTML that stands on its own, plus the JSON that the page script brings to life.

Without scripts a reader still gets the title, the finding, the default picture where it is a drawing,
and the table of numbers.
"""

from __future__ import annotations

from html import escape

from kvlib.explore.exercise import FIRST_SEED, Exercise, Problem
from kvlib.explore.explorer import Explorer
from kvlib.explore.view import dumps, sentence


def script_json(value) -> str:
    """JSON that may stand inside a ``<script>`` element: no ``<`` can end it early."""
    return dumps(value).replace("<", "\\u003c")


def table_html(table: list[list[str]]) -> str:
    """A table with a heading row; the cells arrive spelt.

    >>> table_html([["policy", "held"], ["max", "6"]])
    '<table><thead><tr><th scope="col">policy</th><th scope="col">held</th></tr></thead><tbody>...'
    """
    head, *rows = table
    heading = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"


def explorer_html(explorer: Explorer) -> str:
    """The whole explorer in its default state. The other states lie in ``explorers/<id>.js``."""
    state = explorer.view().to_dict()
    data = {"id": explorer.id, "controls": [c.spec() for c in explorer.controls], "state": state}
    if explorer.predict:
        asked = explorer.predict()
        data["prediction"] = {
            "question": asked.question,
            "options": [{"text": o.text, "reply": o.reply} for o in asked.options],
            "answer": asked.answer,
        }
    picture = state["picture"] if state["kind"] == "svg" else ""
    # A drawing may scroll in its own box on a phone, and a keyboard must reach what scrolls.
    reach = ' tabindex="0"' if picture else ""
    stored = {**data, "state": {**state, "picture": None}} if picture else data
    return (
        f'<section class="kv-explorer" data-explorer="{escape(explorer.id)}" aria-label="{escape(explorer.title)}">'
        f'<p class="kv-kicker">Explorer · {escape(explorer.title)}</p>'
        '<div class="kv-prediction"></div><form class="kv-controls"></form>'
        f'<p class="kv-status" role="status"></p>'
        f'<figure class="kv-figure kv-{state["kind"]}"><p class="kv-title">{escape(state["title"])}</p>'
        f'<div class="kv-picture"{reach}>{picture}</div>'
        f'<figcaption><span class="kv-note">{escape(state["note"])}</span> '
        f'<span class="kv-source">{escape(sentence(state["source"]))}</span></figcaption></figure>'
        f'<details class="kv-numbers"><summary>The numbers shown</summary>{table_html(state["table"])}</details>'
        f'<script type="application/json">{script_json(stored)}</script></section>'
    )


def exercise_html(exercise: Exercise) -> str:
    """The exercise with the numbers of the first seed. The other stored seeds lie in ``explorers/<id>.js``."""
    drawn = exercise.draw(FIRST_SEED)
    kind = "number" if isinstance(drawn, Problem) else "search"
    data = {"id": exercise.id, "kind": kind, "seed": FIRST_SEED, "problem": drawn.to_dict()}
    return (
        f'<section class="kv-exercise" data-exercise="{escape(exercise.id)}" aria-label="{escape(exercise.title)}">'
        f'<p class="kv-kicker">Check yourself · {escape(exercise.title)}</p>'
        f'<p class="kv-question">{escape(drawn.question)}</p>'
        '<form class="kv-controls"></form><p class="kv-reply" role="status"></p>'
        f'<details class="kv-solution"><summary>Solution</summary><p>{escape(drawn.solution)}</p></details>'
        f'<script type="application/json">{script_json(data)}</script></section>'
    )


def states_script(item: Explorer | Exercise) -> str:
    """The precomputed states of one item, as a small script file the page loads when the item comes near.

    A script and not a JSON file, because a page opened from disk may load scripts only.
    """
    states = item.star() if isinstance(item, Explorer) else item.stored()
    return f"kvStates({dumps(item.id)},{dumps(states)});\n"
