"""The notebook face: widgets move the picture, bad input leaves it standing, missing packages are survived."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone

import ipywidgets as widgets
import pytest

from kvlib.explore import EXERCISES, REGISTRY, show
from kvlib.explore.notebook import exercise_widget, explorer_widget


def walk(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def titles(widget):
    return [w.value for w in walk(widget) if isinstance(w, widgets.HTML) and w.value.startswith("<h4>")]


@pytest.mark.parametrize("explorer_id", sorted(REGISTRY))
def test_every_explorer_has_a_widget_with_its_labels(explorer_id):
    explorer = REGISTRY[explorer_id]
    described = {getattr(w, "description", "") for w in walk(explorer_widget(explorer))}
    assert {c.label for c in explorer.controls} <= described


@pytest.mark.parametrize("exercise_id", sorted(EXERCISES))
def test_every_exercise_has_a_widget(exercise_id):
    assert any(isinstance(w, widgets.Button) for w in walk(exercise_widget(EXERCISES[exercise_id])))


def test_moving_a_slider_redraws():
    made = explorer_widget(REGISTRY["kv_cache.wall"])
    before = titles(made)
    slider = next(w for w in walk(made) if isinstance(w, widgets.SelectionSlider))
    slider.value = 1000 if 1000 in [v for _, v in slider.options] else slider.options[0][1]
    assert titles(made) != before


def test_a_refused_setting_leaves_the_picture():
    made = explorer_widget(REGISTRY["kv_cache.wall"])
    before = titles(made)
    model = next(w for w in walk(made) if getattr(w, "description", "") == "Model")
    model.value = "opt-175b"
    assert titles(made) == before
    assert any("its weights alone fill" in w.value for w in walk(made) if isinstance(w, widgets.HTML))


def test_choosing_a_preset_gives_up_the_file(tmp_path):
    made = explorer_widget(REGISTRY["kv_cache.size"])
    before = titles(made)
    upload = next(w for w in walk(made) if isinstance(w, widgets.FileUpload))
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 4}
    content = json.dumps(config).encode()
    upload.value = ({"name": "config.json", "type": "", "size": len(content), "content": content, "last_modified": datetime.now(timezone.utc)},)
    assert titles(made) != before
    model = next(w for w in walk(made) if getattr(w, "description", "") == "Model")
    model.value = "opt-13b"
    assert upload.value == ()
    assert titles(made)[0] == f"<h4>{REGISTRY['kv_cache.size'].view(model='opt-13b').title}</h4>"


def test_an_exercise_is_checked():
    made = exercise_widget(EXERCISES["kv_cache_exercises.bytes_per_token"])
    answer = next(w for w in walk(made) if isinstance(w, widgets.Text))
    answer.value = str(EXERCISES["kv_cache_exercises.bytes_per_token"].draw(1).answer)
    next(w for w in walk(made) if isinstance(w, widgets.Button)).click()
    assert any("✓ Right." in w.value for w in walk(made) if isinstance(w, widgets.HTML))


def test_the_text_face_is_in_every_bundle(monkeypatch):
    monkeypatch.setenv("KVLIB_FACE", "page")
    page = show("kv_cache.wall")._repr_mimebundle_()
    assert set(page) == {"text/plain", "text/html"}
    monkeypatch.delenv("KVLIB_FACE")
    live = show("kv_cache.wall")._repr_mimebundle_()
    assert live["text/plain"] == page["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in live


@pytest.mark.parametrize("missing, found", [("anywidget", "widget-view"), ("ipywidgets", "pip install")])
def test_a_missing_package_is_survived(missing, found):
    """Case A07: without anywidget a plain figure is redrawn, without ipywidgets words and a hint remain."""
    code = (
        f"import sys, json; sys.modules[{missing!r}] = None\n"
        "from kvlib.explore import show\n"
        "print(json.dumps(show('kv_cache.wall')._repr_mimebundle_(), default=str))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert found in run.stdout and "Memory is full" in json.loads(run.stdout.strip().splitlines()[-1])["text/plain"]
