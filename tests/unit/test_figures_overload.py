"""Chapter 12: what its explorers claim, and its exercises."""

import pytest

from kvlib.explore import EXERCISES, REGISTRY
from kvlib.figures import overload

SWING = REGISTRY["overload.swing"]


def test_prediction_is_what_the_runs_say():
    # L7.earlyrej: waste falls, completions about equal. Sign only.
    asked = SWING.predict()
    assert asked.options[asked.answer].text == "only wasted prefill"


def test_a_longer_prefill_widens_the_swing_and_a_long_tail_hides_it():
    short, long = (SWING.view(prefill_s=p).numbers for p in (0.5, 4.0))
    assert long["decode_swing"] > 1.5 * short["decode_swing"]
    assert long["correlation"] < -0.3
    assert SWING.view(spread="long_tail").numbers["decode_swing"] < long["decode_swing"]


def test_every_request_is_in_the_table():
    table = SWING.view().table
    assert sum(row[1] for row in table[1:]) == overload.REQUESTS


def test_headroom_trades_waste_for_completions():
    views = [REGISTRY["overload.controller"].view(headroom=h).numbers for h in (-0.2, 0.8)]
    assert views[0]["wasted_percent"] < views[1]["wasted_percent"]
    assert views[0]["completed_percent"] < views[1]["completed_percent"]


def test_early_rejection_gains_only_where_prefill_is_scarce():
    scarce, ample = (REGISTRY["overload.bottleneck"].view(prefill_instances=n).numbers for n in (4, 12))
    assert scarce["gained"] > scarce["half_width"]
    assert abs(ample["gained"]) < ample["half_width"]


def test_each_cure_of_the_swing_works_on_the_delay_or_on_the_reaction():
    # Lecture 9, exercise 7: a delayed loop with a high gain swings; shorten the delay, compensate it, or lower the gain.
    swings = {cure: overload.mean(r.decode_swing for r in overload.damped(cure)) for cure in overload.CURES}
    as_it_is, shorter, gentler, predicted, lower_limit = swings.values()
    assert max(shorter, gentler, predicted) < 0.85 * as_it_is
    # Moving the limit changes neither: the overshoot now fits into the pool.
    assert lower_limit > as_it_is


def test_interval_by_hand():
    # Differences 1 to 5: mean 3, standard deviation sqrt(2.5), half width 2.776 * sqrt(2.5 / 5).
    middle, half = overload.interval([1, 2, 3, 4, 5])
    assert middle == 3.0 and half == pytest.approx(2.776 * 0.5**0.5)


def test_wasted_gpu_seconds_by_hand():
    # Seed 1 draws prefills 3 6 2 4 2 and decodes 24 23 ...: the first decodes from 3 to 27, all others end before: 14 s × 8.
    problem = EXERCISES["overload_exercises.wasted_gpu_seconds"].draw(1)
    assert "3, 6, 2, 4, 2 s" in problem.question and problem.answer == 112
