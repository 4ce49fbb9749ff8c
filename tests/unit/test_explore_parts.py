"""Controls, views, exercises and drawings on their own."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.explore import (
    COMPUTED, REGISTRY, Choice, Drawing, File, Problem, Range, Slip, Stepper, Text, Toggle, View, check_answer, show,
)
from kvlib.explore.exercise import parse_number
from kvlib.explore.explorer import Explorer
from kvlib.explore.page import explorer_html, script_json, table_html
from kvlib.explore.view import dumps, rounded


def plain_view(n):
    return View("t", {"data": [], "layout": {}}, [["a"], [n]], COMPUTED, numbers={"n": n})


class TestControls:
    def test_a_choice_accepts_its_options_only(self):
        choice = Choice("b", "Block", [8, 16], default=16)
        assert choice.check(8) == 8
        for bad in (9, "8", True, None, 8.5):
            with pytest.raises(ConfigError, match="b: got"):
                choice.check(bad)

    def test_true_is_not_one(self):
        with pytest.raises(ConfigError):
            Choice("n", "N", [0, 1], default=0).check(True)
        with pytest.raises(ConfigError):
            Toggle("t", "T").check(1)

    @given(st.integers(1, 500), st.integers(1, 5000), st.integers(2, 40), st.booleans())
    @settings(derandomize=True, deadline=None)
    def test_a_range_has_its_bounds_and_its_default_and_is_sorted(self, low, width, count, log):
        made = Range("r", "R", low, low + width, count, default=low, log=log)
        assert made.positions[0] == low and made.positions[-1] == low + width
        assert list(made.positions) == sorted(set(made.positions))
        assert all(isinstance(p, int) for p in made.positions)

    @pytest.mark.parametrize("bad", [dict(low=2, high=1), dict(low=0, high=5, log=True), dict(low=0, high=1, count=1)])
    def test_an_impossible_range_is_refused(self, bad):
        with pytest.raises(ConfigError, match="r: a range needs"):
            Range("r", "R", **{"low": 0, "high": 1, "count": 3, **bad}, default=bad.get("low", 0))

    def test_a_default_outside_the_range_is_refused(self):
        with pytest.raises(ConfigError, match="r: default 7"):
            Range("r", "R", 0, 5, 6, default=7)

    def test_text_and_files_are_live_only(self):
        assert Text("t", "T").positions is None and File("f", "F").positions is None
        with pytest.raises(ConfigError, match="t: got"):
            Text("t", "T", longest=3).check("four")
        with pytest.raises(ConfigError, match="f: got"):
            File("f", "F").check(3)

    def test_a_stepper_counts_its_frames(self):
        assert Stepper("s", "S", last=3).positions == (0, 1, 2, 3)


class TestExplorer:
    def test_controls_must_match_the_function(self):
        with pytest.raises(ConfigError, match="do not match"):
            Explorer("x.y", plain_view, "X", (Toggle("other", "O"),))

    def test_expectations_must_name_a_control_and_a_direction(self):
        for bad in ({"m": "rises:n"}, {"n": "grows:n"}):
            with pytest.raises(ConfigError, match="expects"):
                Explorer("x.y", plain_view, "X", (Choice("n", "N", [1, 2], default=1),), expects=bad)

    def test_an_unknown_id_lists_the_known_ones(self):
        with pytest.raises(ConfigError, match="kv_cache.wall"):
            REGISTRY["kv_cache.walls"]
        for nearly in ("kv_cache.wal", "kv_cache.walls", "cache.wall"):
            with pytest.raises(ConfigError, match="close: .*kv_cache.wall"):
                show(nearly)


class TestView:
    def test_infinite_numbers_never_reach_a_page(self):
        for bad in (math.nan, math.inf):
            with pytest.raises(ConfigError, match="finite"):
                rounded({"y": [bad]})

    @given(st.floats(min_value=-1e300, max_value=1e300, allow_subnormal=False))
    @settings(derandomize=True, deadline=None)
    def test_rounding_keeps_five_digits_and_is_idempotent(self, x):
        once = rounded(x)
        assert rounded(once) == once
        assert abs(once - x) <= 0.5001e-4 * abs(x)
        assert json.loads(dumps(once)) == once


class TestPage:
    def test_nothing_ends_a_script_early(self):
        assert "<" not in script_json({"text": "</script><b>"})

    def test_words_from_outside_are_escaped(self):
        evil = '<img src=x onerror="alert(1)">'
        assert "<img" not in table_html([[evil], [evil]])
        drawing = Drawing(10, title=evil, description=evil)
        drawing.box(0, 0, 9, 9, text=evil, title=evil, fill='red" onload="x')
        drawing.text(0, 0, evil)
        assert "<img" not in drawing.render() and 'onload="x' not in drawing.render()

    def test_a_drawing_is_well_formed(self):
        """A box with a hover title once lost its closing tag, and the rest of the drawing with it."""
        drawing = Drawing(40, title="a & b", description="<>")
        drawing.box(0, 0, 30, 20, title="hover <here>", hatched=True, dashed=True, text="x & y")
        drawing.box(30, 0, 30, 20, fill="#2a7fc4")
        drawing.arrow(0, 0, 10, 30)
        drawing.line(0, 0, 10, 30, dashed=True)
        shapes = ElementTree.fromstring(drawing.render())
        assert len(shapes.findall("{http://www.w3.org/2000/svg}rect")) == 2

    def test_a_hostile_explorer_is_escaped(self):
        evil = "</script><script>alert(1)</script>"

        def hostile(n):
            return View(evil, {"data": [], "layout": {}}, [[evil], [n]], evil, note=evil)

        made = Explorer("x.hostile", hostile, evil, (Choice("n", evil, [1, 2], default=1),))
        assert explorer_html(made).count("<script") == 1


class TestExercise:
    problem = Problem("?", 1_677_721_600, "bytes", "…", slips=(Slip(1_677_721_600 / 2, "K without V."),))

    @pytest.mark.parametrize("text, right", [
        ("1,677,721,600", True), ("1677721600", True), ("1.6777216e9", True), ("1677721601", False),
        ("838860800", False), ("", False), ("many", False), ("nan", False), ("1e999", False), ("-1677721600", False),
    ])
    def test_answers(self, text, right):
        assert check_answer(self.problem, text).right is right

    def test_replies(self):
        assert check_answer(self.problem, "838,860,800").reply == "K without V."
        assert "factor of 8" in check_answer(self.problem, str(8 * 1_677_721_600)).reply
        assert "too low by 10 %" in check_answer(self.problem, str(0.9 * 1_677_721_600)).reply
        assert "expected a number" in check_answer(self.problem, "many").reply

    def test_tolerance(self):
        near = Problem("?", 100.0, "ms", "…", tolerance=0.05)
        assert check_answer(near, "104.9").right and not check_answer(near, "105.1").right

    def test_percent(self):
        assert parse_number("44 %") == 0.44

    def test_the_unit_may_stand_behind_the_number(self):
        assert check_answer(self.problem, "1,677,721,600 bytes").right
        assert not check_answer(self.problem, "1,677,721,600 tokens").right
