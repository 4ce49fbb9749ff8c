"""The simulators are standard library only, so that they run in a browser and start at once."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import kvlib

HEAVY = ("numpy", "torch", "plotly", "ipywidgets", "anywidget", "IPython", "pandas", "scipy")
# The array half, and the one face that needs ipywidgets.
ARRAYS = ("kvlib.tensors", "kvlib.cachegen", "kvlib.explore.notebook", "kvlib.figures.data")


def pure_modules():
    found = [m.name for m in pkgutil.walk_packages(kvlib.__path__, "kvlib.", onerror=lambda name: None)]
    return [name for name in found if not name.startswith(ARRAYS)]


def loaded_after(statement: str) -> list[str]:
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize("statement", ["import kvlib", "from kvlib.explore import REGISTRY; list(REGISTRY)"])
def test_nothing_heavy_is_loaded(statement):
    assert loaded_after(statement) == []


def test_no_simulator_module_loads_anything_heavy():
    assert loaded_after("import " + ", ".join(pure_modules())) == []
