"""The notebook face: ipywidgets that drive a plotly FigureWidget, an SVG or a table."""

from __future__ import annotations

import tempfile
from html import escape
from pathlib import Path

import ipywidgets as widgets

from kvlib.explore.controls import MAX_FILE_BYTES, Control
from kvlib.explore.exercise import FIRST_SEED, Problem, Search, check_answer
from kvlib.explore.explorer import Explorer
from kvlib.explore.page import table_html
from kvlib.explore.view import View, sentence

WIDE = {"description_width": "11em"}
ROOMY = widgets.Layout(width="36em", max_width="100%")


def explorer_widget(explorer: Explorer) -> widgets.Widget:
    """Controls, picture and numbers in one box; the first control in sight, the others folded."""
    shown = _Picture(explorer.view())
    inputs = {c.name: _input(c) for c in explorer.controls}
    status = widgets.HTML()

    def redraw(_=None):
        try:
            shown.draw(explorer.view(**{name: field.read() for name, field in inputs.items()}))
            status.value = ""
        except ValueError as refusal:
            # The previous picture stays, so a reader sees what still holds.
            status.value = f"<b role='alert'>{escape(str(refusal))}</b>"

    for control in explorer.controls:
        replaced = getattr(control, "replaces", "")
        if replaced:
            inputs[replaced].watch(inputs[control.name].clear)
    for field in inputs.values():
        field.watch(redraw)
    first, *others = [field.widget for field in inputs.values()]
    folded = [_fold("More controls", others)] if others else []
    asked = [_prediction(explorer)] if explorer.predict else []
    return widgets.VBox([*asked, first, *folded, status, shown.widget])


def exercise_widget(exercise) -> widgets.Widget:
    """The question, an answer field or controls, a check button, a reply, and other numbers on request."""
    box = widgets.VBox()
    seed = widgets.BoundedIntText(FIRST_SEED, min=1, max=2**31 - 1, description="Seed", layout={"width": "14em"})

    def draw(_=None):
        drawn = exercise.draw(seed.value)
        ask = _problem_rows if isinstance(drawn, Problem) else _search_rows
        heading = widgets.HTML(f"<b>{escape(exercise.title)}</b><p>{escape(drawn.question)}</p>")
        solution = widgets.HTML(f"<p>{escape(drawn.solution)}</p>")
        box.children = [heading, *ask(drawn), _fold("Solution", [solution]), seed]

    seed.observe(draw, "value")
    draw()
    return box


def _problem_rows(problem: Problem) -> list[widgets.Widget]:
    answer = widgets.Text(description="Answer", placeholder=problem.unit, continuous_update=False)
    return _checked([answer], lambda: check_answer(problem, answer.value))


def _search_rows(search: Search) -> list[widgets.Widget]:
    inputs = {c.name: _input(c) for c in search.controls}
    rows = [field.widget for field in inputs.values()]
    return _checked(rows, lambda: search.check({name: field.read() for name, field in inputs.items()}))


def _checked(rows, verdict) -> list[widgets.Widget]:
    button = widgets.Button(description="Check")
    reply = widgets.HTML()

    def check(_):
        try:
            said = verdict()
            reply.value = f"<p>{'✓' if said.right else '✗'} {escape(said.reply)}</p>"
        except ValueError as refusal:
            reply.value = f"<p>✗ {escape(str(refusal))}</p>"

    button.on_click(check)
    return [*rows, button, reply]


def _fold(title: str, children) -> widgets.Widget:
    fold = widgets.Accordion([widgets.VBox(list(children))], titles=(title,))
    fold.selected_index = None
    return fold


def _prediction(explorer: Explorer) -> widgets.Widget:
    asked = explorer.predict()
    choice = widgets.RadioButtons(options=[o.text for o in asked.options], value=None, layout={"width": "max-content"})
    reply = widgets.HTML()

    def answer(change):
        index = choice.index
        mark = "✓" if index == asked.answer else "✗"
        reply.value = f"<p>{mark} {escape(asked.options[index].reply)}</p>"

    choice.observe(answer, "value")
    question = widgets.HTML(f"<p><b>Predict first.</b> {escape(asked.question)}</p>")
    return widgets.VBox([question, choice, reply])


class _Picture:
    """Title, picture, caption and table of one view, redrawn in place."""

    def __init__(self, view: View):
        self._title = widgets.HTML()
        self._svg = widgets.HTML()
        self._caption = widgets.HTML()
        self._plot = _Plot() if not isinstance(view.picture, str) else None
        middle = self._plot.widget if self._plot else self._svg
        self.widget = widgets.VBox([self._title, middle, self._caption])
        self.draw(view)

    def draw(self, view: View):
        state = view.to_dict()
        self._title.value = f"<h4>{escape(state['title'])}</h4>"
        if self._plot:
            self._plot.draw(state["picture"])
        else:
            self._svg.value = f"<div style='max-width:760px'>{state['picture']}</div>"
        note = f"<p>{escape(state['note'])}</p>" if state["note"] else ""
        self._caption.value = f"{note}<p><i>{escape(sentence(state['source']))}</i></p>{table_html(state['table'])}"


class _Plot:
    """A FigureWidget, or a redrawn plain figure where anywidget is missing."""

    def __init__(self):
        import plotly.graph_objects as go

        self._make = go.Figure
        try:
            self.widget = self._live = go.FigureWidget()
        except ImportError:
            self._live = None
            self.widget = widgets.Output()

    def draw(self, figure: dict):
        if self._live is None:
            self.widget.clear_output(wait=True)
            self.widget.append_display_data(self._make(figure))
            return
        with self._live.batch_update():
            if len(self._live.data) != len(figure["data"]):
                self._live.data = ()
                self._live.add_traces(figure["data"])
            else:
                for trace, new in zip(self._live.data, figure["data"]):
                    trace.update(new, overwrite=True)
            self._live.layout.update(figure["layout"], overwrite=True)


class _Field:
    """One control: its widget, how to read its value and how to hear of a change."""

    def __init__(self, widget, read, watched=None):
        self.widget = widget
        self.read = read
        self._watched = watched or widget

    def watch(self, callback):
        self._watched.observe(callback, "value")

    def clear(self, _=None):
        """Give up the file: a preset was chosen instead of it."""
        self.widget.value = ()


def _input(control: Control) -> _Field:
    return _MAKERS[control.kind](control)


def _slider(control) -> _Field:
    options = [(control.text(p), p) for p in control.positions]
    widget = widgets.SelectionSlider(
        options=options, value=control.default, description=control.label, style=WIDE, layout=ROOMY
    )
    return _Field(widget, lambda: widget.value)


def _list(control) -> _Field:
    options = [(control.text(p), p) for p in control.positions]
    widget = widgets.Dropdown(options=options, value=control.default, description=control.label, style=WIDE, layout=ROOMY)
    return _Field(widget, lambda: widget.value)


def _toggle(control) -> _Field:
    widget = widgets.Checkbox(control.default, description=control.label, style=WIDE, layout=ROOMY)
    return _Field(widget, lambda: widget.value)


def _text(control) -> _Field:
    widget = widgets.Text(control.default, description=control.label, style=WIDE, layout=ROOMY)
    return _Field(widget, lambda: widget.value)


def _stepper(control) -> _Field:
    slider = widgets.IntSlider(
        control.default, min=0, max=control.last, description=control.label, style=WIDE, layout=ROOMY
    )
    play = widgets.Play(min=0, max=control.last, interval=900, description="Play")
    widgets.jslink((play, "value"), (slider, "value"))
    return _Field(widgets.HBox([slider, play]), lambda: slider.value, slider)


def _file(control) -> _Field:
    upload = widgets.FileUpload(accept=control.accept, multiple=False, description=control.label, layout=ROOMY)
    folder = tempfile.TemporaryDirectory(prefix="kvlib-")

    def read():
        if not upload.value:
            return ""
        given = upload.value[0]
        if given["size"] > MAX_FILE_BYTES:
            raise ValueError(f"{given['name']}: {given['size']:,} bytes, expected at most {MAX_FILE_BYTES:,}")
        path = Path(folder.name) / Path(given["name"]).name
        path.write_bytes(given["content"])
        return str(path)

    return _Field(upload, read)


_MAKERS = {
    "slider": _slider, "list": _list, "toggle": _toggle, "text": _text, "stepper": _stepper, "file": _file,
}
