"""Chapter 15: what its explorers and exercises promise.

What holds for every explorer is in test_explore_registry.py.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
from shown import view

from kvlib.cost import break_even_bytes_per_s
from kvlib.explore import EXERCISES, REGISTRY, Problem, check_answer
from kvlib.figures.plan import plan_of
from kvlib.figures.plan_data import LOADS, WORKLOADS, stored_demand, to_record
from kvlib.figures.plan_inputs import CONTROLS
from kvlib.figures.plan_links import PAGES, links, nearest
from kvlib.planner.demand import BLOCK_SIZES, CAPACITIES
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import prefix_trace

EXPLORERS = ("plan.waterfall", "plan.monday", "plan.sensitivity")
DEFAULTS = {control.name: control.default for control in CONTROLS}
ROOT = Path(__file__).parents[2]
ROW = {"timestamp": 0, "input_length": 1500, "output_length": 20, "hash_ids": [0, 1, 2]}


# Stored demands.

def test_stored_demands_cover_every_workload_and_load():
    stored = json.loads((ROOT / "kvlib/figures/data/plan.json").read_text())
    assert stored["block_sizes"] == list(BLOCK_SIZES) and stored["capacities"] == list(CAPACITIES)
    assert {(name, float(load)) for name, loads in stored["demands"].items() for load in loads} == {
        (name, load) for name in WORKLOADS for load in LOADS
    }


def test_a_stored_demand_is_what_its_script_makes():
    script = import_module("kvlib.figures.data.make_plan")
    assert json.loads(json.dumps(script.demand_record("chat", 4.0))) == json.loads(
        json.dumps(to_record(stored_demand("chat", 4.0)))
    )


def test_more_load_needs_more_room():
    """Sessions pause for as long, and more others come between two turns."""
    ratios = [stored_demand("agents", load).hit_ratio(2**18) for load in LOADS]
    assert ratios == sorted(ratios, reverse=True)


# The waterfall.

def test_the_network_hardly_helps_short_chats():
    """pedagogy.md: 10 times, 2 times, hardly? A run decides it."""
    asked = REGISTRY["plan.waterfall"].predict()
    assert asked.options[asked.answer].text == "hardly"
    slow, fast = (view("plan.waterfall", network=speed).numbers["plan_ms"] for speed in (10, 100))
    assert slow / fast < 1.05


def test_the_network_helps_long_documents_that_have_nowhere_else_to_go():
    bare = {"workload": "documents", "host_gb": 0, "ssd_tb": 0}
    slow, fast = (view("plan.waterfall", network=speed, **bare).numbers["plan_ms"] for speed in (10, 100))
    assert slow / fast > 1.5


def test_bars_begin_where_the_last_one_ended():
    figure = view("plan.waterfall", workload="documents").picture
    hidden, *parts = figure["data"][:-1]
    low = hidden["x"]
    high = [base + sum(part["x"][i] for part in parts) for i, base in enumerate(low)]
    rows = hidden["y"]
    plan_at = rows.index("your plan")
    assert rows[0] == "no cache" and low[0] == low[plan_at] == 0
    edges = [high[0], *(low[i] for i in range(1, plan_at)), high[plan_at]]
    assert edges[-2] == pytest.approx(edges[-1])
    for i in range(1, plan_at):             # each step starts at one of its predecessor's ends
        assert any(edge == pytest.approx(low[i - 1]) or edge == pytest.approx(high[i - 1]) for edge in (low[i], high[i]))


def test_every_step_names_its_chapter_and_gray_is_what_is_not_used():
    shown = view("plan.waterfall", workload="agents")
    steps = [row for row in shown.table[1:] if row[2] in ("yes", "no")]
    gray = next(part for part in shown.picture["data"] if part.get("name") == "would not help")
    unused = {f"{row[1]} · {row[0]}" for row in steps if row[2] == "no"}
    assert unused and unused == set(gray["y"][gray["y"].index("your plan") + 1 :])
    assert all(row[1].isdigit() for row in steps)


def test_title_tells_the_overload():
    crowded = view("plan.waterfall", workload="documents", gpu="l4", load=8.0)
    assert dict((row[0], row[3]) for row in crowded.table)["wait for other prefills"].startswith("overload")
    assert crowded.numbers["busy"] > 1


# The reader's own files.

@pytest.fixture
def own_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{**ROW, "timestamp": 1000 * i, "hash_ids": [0, 1, 10 + i % 3]} for i in range(60)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.mark.parametrize("explorer_id", EXPLORERS)
def test_a_dropped_trace_is_planned_for(explorer_id, own_trace):
    shown = view(explorer_id, trace=own_trace)
    assert shown.title != view(explorer_id).title


def test_a_dropped_trace_takes_the_place_of_the_workload(own_trace):
    """Sixty prompts of three blocks, five different ones: 175 of 180 references return."""
    made = plan_of(**{**DEFAULTS, "trace": own_trace})
    assert made.setting.demand.input_tokens == 1500
    # Of 1,500 tokens two whole blocks and 475 of the third can be found, 1,488 in blocks of 16; three first visits less.
    assert made.outcome.hit_ratio == pytest.approx((57 * 1488 + 2 * 1024) / (60 * 1500), rel=0.01)
    assert "your trace" in view("plan.waterfall", trace=own_trace).title.lower()


def test_a_dropped_config_is_the_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }))
    for explorer_id in EXPLORERS:
        assert view(explorer_id, config=str(path)).numbers == view(explorer_id, model="llama-3-8b").numbers


def test_a_trace_without_prefixes_is_refused_by_name(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n5,472,18\n45,1087,8\n")
    answer = json.loads(REGISTRY["plan.waterfall"].json(json.dumps({"trace": str(path)})))
    assert "block_ids" in answer["error"]


# Lines and their links.

def every_link():
    for workload in WORKLOADS:
        for other in ({}, {"host_gb": 0}, {"gpu": "a100-80gb", "model": "mistral-7b", "load": 0.5}):
            yield from links(plan_of(**{**DEFAULTS, "workload": workload, **other}), workload)


def test_every_link_opens_an_existing_state():
    for link in every_link():
        explorer = REGISTRY[link.explorer_id]
        assert explorer.view(**link.params)
        assert (ROOT / "notebooks" / f"{PAGES[link.line.chapter]}.ipynb").exists()
        assert f'show(\\"{link.explorer_id}\\")' in (ROOT / "notebooks" / f"{PAGES[link.line.chapter]}.ipynb").read_text()


def test_an_address_spells_positions_as_the_page_does():
    """explorer.js compares String(position): 4.0 is "4" there and True is "true"."""
    for link in every_link():
        address = urlsplit(link.href)
        values = {name: value for name, (value,) in parse_qs(address.fragment).items()}
        assert values.pop("kv") == link.explorer_id and values.keys() == link.params.keys()
        for name, value in link.params.items():
            spelt = json.dumps(value) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
            assert values[name] == spelt


def test_a_line_says_when_it_had_to_round():
    found = {link.line.topic: link for link in links(plan_of(**{**DEFAULTS, "workload": "documents"}), "documents")}
    assert re.search(r"context [\d,]+ for your [\d,]+ tokens", " ".join(found["host"].rounded))
    # A number that the control offers is not called rounded.
    assert not any("block" in words for words in found["block"].rounded)


def test_nearest_is_by_ratio():
    context = next(c for c in REGISTRY["load_or_recompute.break_even"].controls if c.name == "context")
    assert nearest(context, 11_000) == 8000 and nearest(context, 11_500) == 16_000        # 11,314 is the middle


def test_the_card_is_a_list_of_links():
    shown = view("plan.monday")
    root = ElementTree.fromstring(shown.picture)
    anchors = [element for element in root.iter() if element.tag.endswith("}a")]
    assert len(anchors) == len(shown.table) - 1 == shown.numbers["lines"]
    # A drawing that is one image would hide its links.
    assert root.get("role") != "img"


def test_a_store_is_judged_against_break_even():
    """The lines for stores compare what a link delivers with chapter 8's break-even at the same context."""
    made = plan_of(**{**DEFAULTS, "workload": "rag"})
    network = next(link.line for link in links(made, "rag") if link.line.topic == "network")
    delivered, tie = map(float, re.findall(r"([\d.]+) GB/s, break-even ([\d.]+)", network.because)[0])
    llama, h100 = get_model("llama-3-8b"), get_gpu("h100-80gb")
    assert delivered < tie < break_even_bytes_per_s(llama, h100, 100) / 1e9 and "leave it out" in network.choice


# Sensitivity and prices.

def test_the_bar_ends_at_the_flip():
    shown = view("plan.sensitivity")
    for bar in shown.picture["data"]:
        factor = shown.numbers[bar["name"]]
        assert bar["x"] == ([1.0, factor] if factor else [1 / 16, 16])


def test_late_calls_end_the_bargain():
    """1.25 to write and 0.1 to read: above 0.9 / 1.15 = 78 % late calls the cache costs more."""
    assert view("plan_prices.api_price", late_percent=70).numbers["pays"] > 0
    assert view("plan_prices.api_price", late_percent=80).numbers["pays"] == 0


# Exercises.

def test_the_agent_of_the_lecture():
    """Lecture 9, ex. 8: 131 GB, 2.6 s a reload; 500 steps are 21 minutes."""
    for seed in range(1, 100):
        drawn = EXERCISES["plan_exercises.agent_day"].draw(seed)
        if "1,000,000 tokens" in drawn.question and "500 steps" in drawn.question:
            assert drawn.answer == pytest.approx(500 * 131.072e9 / 51.2e9 / 60, rel=1e-3)
            return
    pytest.fail("no seed drew the lecture's case")


def test_the_idle_ssd_follows_from_the_numbers_in_the_question():
    given = re.compile(r"documents of ([\d,]+) tokens.* takes ([\d,]+) bytes.* takes ([\d,]+) ms.* takes ([\d.]+) ms.*"
                       r"delivers ([\d.]+) GB/s")
    for seed in range(1, 25):
        drawn = EXERCISES["plan_exercises.idle_ssd"].draw(seed)
        tokens, kv, without, left, rate = (float(x.replace(",", "")) for x in given.search(drawn.question).groups())
        by_hand = without / max(1e3 * tokens * kv / (rate * 1e9), left)
        assert check_answer(drawn, f"{by_hand:.3g}").right, (drawn.question, by_hand, drawn.answer)


def test_where_memory_is_the_shortage_no_tier_ends_the_rising_p99():
    """An L4 holds 16 or 21 of these chats; tiers take prefill off it, and still more than that have to run."""
    for seed in range(1, 12):
        drawn = EXERCISES["plan_exercises.rising_p99"].draw(seed)
        right = {change for change in ("nothing", "host", "ssd", "network", "quantized") if drawn.judge(change).right}
        assert "quantized" in right and "nothing" not in right
        assert right == {"quantized"} or "one L4:" not in drawn.question


def test_the_planner_judges_one_setting_and_four_clients():
    ids = [i for i in EXERCISES if i.startswith("plan_exercises.")]
    kinds = [isinstance(EXERCISES[i].draw(1), Problem) for i in ids]
    assert kinds.count(True) == 4 and kinds.count(False) == 2


def test_agents_of_the_preset_are_those_of_the_workload():
    """The stored demand has the means of the workload it is drawn from."""
    trace = prefix_trace("agents", n=2000, rate=2.0, seed=0, block_size=512)
    mean = sum(r.num_input_tokens for r in trace.requests) / len(trace.requests)
    assert stored_demand("agents", 2.0).input_tokens == pytest.approx(mean, rel=1e-3)
