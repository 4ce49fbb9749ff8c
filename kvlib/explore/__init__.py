"""Explorers and self-checked exercises: declared once, shown in a notebook, a page, words and tests."""

from kvlib.explore.controls import Choice, File, Range, Stepper, Text, Toggle
from kvlib.explore.exercise import EXERCISES, Problem, Search, Slip, Verdict, check_answer, exercise
from kvlib.explore.explorer import REGISTRY, Explorer, Option, Prediction, explorer
from kvlib.explore.show import show
from kvlib.explore.svg import Drawing
from kvlib.explore.view import COMPUTED, MEASURED, SIMULATED, View, reported

__all__ = [
    "COMPUTED", "Choice", "Drawing", "EXERCISES", "Explorer", "File", "MEASURED", "Option", "Prediction",
    "Problem", "REGISTRY", "Range", "SIMULATED", "Search", "Slip", "Stepper", "Text", "Toggle", "Verdict",
    "View", "check_answer", "exercise", "explorer", "reported", "show",
]
