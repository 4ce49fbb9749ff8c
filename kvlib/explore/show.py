"""``show("kv_cache.wall")`` is all a notebook cell says; the place decides which face appears."""

from __future__ import annotations

import os
from difflib import get_close_matches

from kvlib.errors import ConfigError
from kvlib.explore.exercise import EXERCISES
from kvlib.explore.explorer import REGISTRY
from kvlib.explore.page import exercise_html, explorer_html

FACE_VARIABLE = "KVLIB_FACE"


class Shown:
    """What Jupyter displays: HTML while the book is built, live widgets in a notebook, words everywhere."""

    def __init__(self, text: str, html, widget):
        self._text = text
        self._html = html
        self._widget = widget

    def __repr__(self):
        return self._text

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle = {"text/plain": self._text}
        if os.environ.get(FACE_VARIABLE) == "page":
            return {**bundle, "text/html": self._html()}
        try:
            return {**self._widget()._repr_mimebundle_(), **bundle}
        except ImportError:
            hint = "(No sliders here: ipywidgets is not installed. Run: pip install 'kvlib[explore]')"
            return {"text/plain": f"{self._text}\n\n{hint}"}


def show(item_id: str) -> Shown:
    """Show an explorer or a self-checked exercise.

    Parameters
    ----------
    item_id : str
        For example ``"kv_cache.wall"``.

    Raises
    ------
    ConfigError
        When nothing has that id; the message lists what does.

    Examples
    --------
    >>> shown = show("kv_cache.wall")       # in a notebook: a live widget
    """
    found = REGISTRY.find(item_id)
    if found is not None:
        return Shown(found.text(), lambda: explorer_html(found), lambda: _widgets().explorer_widget(found))
    exercise = EXERCISES.find(item_id)
    if exercise is None:
        near = get_close_matches(item_id, [*REGISTRY, *EXERCISES], n=3, cutoff=0.3)
        raise ConfigError(f"nothing is called {item_id!r} here; close: {', '.join(near) or 'none'}. The reference part lists all ids")
    return Shown(exercise.text(), lambda: exercise_html(exercise), lambda: _widgets().exercise_widget(exercise))


def _widgets():
    # Late, because ipywidgets is optional and a page build needs none of it.
    from kvlib.explore import notebook

    return notebook
