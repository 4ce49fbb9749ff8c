"""The registry walk: what must hold for every explorer and every exercise of the book."""

from __future__ import annotations

import gzip
import json
from xml.etree import ElementTree

import pytest

from kvlib.explore import EXERCISES, REGISTRY, Problem, check_answer
from kvlib.explore.exercise import STORED_SEEDS
from kvlib.explore.page import exercise_html, explorer_html, states_script

EXPLORER_IDS = sorted(REGISTRY)
EXERCISE_IDS = sorted(EXERCISES)
# Loaded when the explorer comes near; drawings compress about tenfold.
STATES_LIMIT_BYTES = 600_000
STATES_LIMIT_GZIP_BYTES = 80_000


@pytest.fixture(scope="module")
def stars():
    """The star of each explorer, made once."""
    made = {}

    def star(explorer_id):
        if explorer_id not in made:
            made[explorer_id] = REGISTRY[explorer_id].star()
        return made[explorer_id]

    return star


def pictures(states):
    return [json.dumps([s["picture"], s["table"], s["title"]], sort_keys=True) for s in states if "error" not in s]


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_every_control_changes_the_picture(explorer_id, stars):
    for name, states in stars(explorer_id).items():
        assert len(set(pictures(states))) > 1, f"{name} changes nothing"


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_most_positions_show_something(explorer_id, stars):
    for name, states in stars(explorer_id).items():
        refused = [s["error"] for s in states if "error" in s]
        assert len(states) - len(refused) >= max(2, len(states) / 3), f"{name}: {refused}"


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_declared_directions_hold(explorer_id, stars):
    for name, wanted in REGISTRY[explorer_id].expects.items():
        direction, _, number = wanted.partition(":")
        known = REGISTRY[explorer_id].view().numbers
        assert number in known, f"expects names {number!r}; the view's numbers are {', '.join(known)}"
        values = [s["numbers"][number] for s in stars(explorer_id)[name] if "error" not in s]
        steps = list(zip(values, values[1:]))
        if direction == "rises":
            assert values[-1] > values[0] and all(b >= a for a, b in steps), (name, values)
        elif direction == "falls":
            assert values[-1] < values[0] and all(b <= a for a, b in steps), (name, values)
        else:
            assert len(set(values)) > 1, (name, values)


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_faces_agree_and_are_stable(explorer_id):
    explorer = REGISTRY[explorer_id]
    first, again = explorer.json(), explorer.json(json.dumps(explorer.defaults))
    assert first == again
    state = json.loads(first)
    assert state["title"] in explorer.text() and state["title"] in explorer_html(explorer).replace("&#x27;", "'")
    assert all(len(row) == len(state["table"][0]) for row in state["table"])
    assert state["source"].split()[0] in {"computed", "simulated", "measured", "reported"}
    if state["kind"] == "svg":
        assert "<title>" in state["picture"] and "<desc>" in state["picture"]
        ElementTree.fromstring(state["picture"])
    else:
        axes = [value for key, value in state["picture"]["layout"].items() if key[1:5] == "axis"]
        assert any(axis["title"]["text"] for axis in axes), "an axis needs a title with its unit"


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_states_file_is_small(explorer_id):
    script = states_script(REGISTRY[explorer_id]).encode()
    assert len(script) < STATES_LIMIT_BYTES
    assert len(gzip.compress(script)) < STATES_LIMIT_GZIP_BYTES


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_bad_parameters_are_refused_by_name(explorer_id):
    explorer = REGISTRY[explorer_id]
    name = explorer.controls[0].name
    for bad in ('{"no_such_control": 1}', json.dumps({name: ["x"]}), json.dumps({name: {}}), "[1]", "{", '{"%s": NaN}' % name):
        answer = json.loads(explorer.json(bad))
        assert set(answer) == {"error"} and answer["error"], bad
    assert "no_such_control" in json.loads(explorer.json('{"no_such_control": 1}'))["error"]
    assert name in json.loads(explorer.json(json.dumps({name: ["x"]})))["error"]


@pytest.mark.parametrize("explorer_id", EXPLORER_IDS)
def test_prediction_speaks_to_every_choice(explorer_id):
    explorer = REGISTRY[explorer_id]
    if explorer.predict is None:
        return
    asked = explorer.predict()
    assert 3 <= len(asked.options) <= 4
    assert len({o.reply for o in asked.options}) == len(asked.options)


@pytest.mark.parametrize("exercise_id", EXERCISE_IDS)
def test_exercise_draws(exercise_id):
    exercise = EXERCISES[exercise_id]
    drawn = [exercise.draw(seed) for seed in range(1, STORED_SEEDS + 1)]
    assert exercise.json('{"seed": 3}') == exercise.json('{"seed": 3}')
    assert exercise.title in exercise_html(exercise)
    for problem in drawn:
        if isinstance(problem, Problem):
            assert check_answer(problem, repr(problem.answer)).right
            for slip in problem.to_dict()["slips"]:
                verdict = check_answer(problem, repr(slip["value"]))
                assert not verdict.right and verdict.reply == slip["reply"] or _shadowed(problem, slip)
        else:
            assert problem.check(problem.known).right, problem.known
            assert not problem.check({c.name: c.default for c in problem.controls}).right, "the default must not pass"
    assert len({p.question for p in drawn}) > 1, "another seed must draw other numbers"


def _shadowed(problem, slip) -> bool:
    """Two slips may lie within the tolerance of each other; the first one then answers."""
    others = [s for s in problem.to_dict()["slips"] if s is not slip]
    return any(abs(s["value"] - slip["value"]) <= 0.006 * abs(s["value"]) for s in others)


@pytest.mark.parametrize("exercise_id", EXERCISE_IDS)
def test_exercise_refuses_bad_requests(exercise_id):
    for bad in ('{"seed": 0}', '{"seed": "1"}', '{"seed": 1.5}', '{"seed": true}', "[]", "{"):
        assert "error" in json.loads(EXERCISES[exercise_id].json(bad)), bad
