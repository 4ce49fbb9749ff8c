"""Chapter 2: oracles and expectations of its explorers and exercises.

What holds for every explorer is in test_explore_registry.py.
"""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shown import view

from kvlib.blocks import next_power_of_two
from kvlib.explore import EXERCISES, REGISTRY, check_answer
from kvlib.figures.fragmentation import STEPS, STORIES, final_lengths, life_of, play
from kvlib.figures.fragmentation_account import (
    FIGURE_2, NUM_REQUESTS, NUM_SLOTS, PAPER_SLOTS, POLICIES, account_between, account_under_load, mean_slots,
    workload,
)
from kvlib.serving import simulate
from kvlib.workloads import sharegpt_like

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared")) / "data"
ACCOUNT = "fragmentation_account.account"
IDS = (
    ACCOUNT, "fragmentation_account.over_time", "fragmentation_account.at_once",
    "fragmentation.buddy_map", "fragmentation.growth", "fragmentation.tail", "fragmentation.slot_seconds",
)
few = settings(max_examples=40, deadline=None, derandomize=True)


def table(explorer_id, **params):
    return {row[0]: row[1:] for row in view(explorer_id, **params).table[1:]}


# The account from a timeline.

@pytest.fixture(scope="module")
def runs():
    requests = sharegpt_like(NUM_REQUESTS, rate=6.0, seed=3)
    return {memory: simulate(requests, memory=memory) for memory in POLICIES}


@pytest.mark.parametrize("memory", POLICIES)
def test_account_of_a_whole_run_is_the_engines_own(runs, memory):
    """Our account reads the timeline only; over the whole run the engine has integrated the same exactly."""
    run = runs[memory]
    start_s = run.timeline[0].start_s
    ours = account_between(run, memory, start_s, start_s + run.duration_s)
    for kind, share in run.utilisation_by_kind.items():
        # Steps grow longer within a stretch; for Paged, the blocks taken in it matter a little too.
        assert ours.shares[kind] == pytest.approx(share, abs=0.004 if memory == "paged" else 0.0005), kind
    assert ours.mean_running == pytest.approx(run.mean_running)


@pytest.mark.parametrize("memory", POLICIES)
def test_kinds_add_up_at_every_moment(runs, memory):
    for stretch in runs[memory].timeline:
        slots = mean_slots(stretch, memory)
        assert sum(slots.values()) == NUM_SLOTS and min(slots.values()) >= 0


@few
@given(st.floats(0, 60), st.floats(0.5, 60))
def test_account_of_any_window_adds_up_to_one(runs, start_s, length_s):
    # 120 s reaches past the end of the Paged run: an idle machine is free memory.
    ours = account_between(runs["paged"], "paged", start_s, start_s + length_s)
    assert sum(ours.shares.values()) == pytest.approx(1)
    assert min(ours.shares.values()) >= 0


def test_idle_time_is_free(runs):
    end_s = runs["paged"].timeline[-1].end_s
    assert account_between(runs["paged"], "paged", end_s, end_s + 1).shares["free"] == 1


# The explorers that serve.

def test_slots_oracles():
    """L7.slots.12596; the paper's table 1: 12 GiB ÷ 800 KiB = 15,728 (L7.paper.slots15.7k)."""
    assert NUM_SLOTS == 12596
    assert PAPER_SLOTS == 15728 and PAPER_SLOTS // 2048 == 7


def test_account_agrees_with_the_lecture_and_the_notebooks_longer_run():
    """L7.frag.sim: Max .20-.28, paged > .90, the order of the four; Oracle .36-.44 over 1,500 requests."""
    used = {name: view(ACCOUNT).numbers[f"{name}_used"] / 100 for name in POLICIES}
    assert list(used.values()) == sorted(used.values())
    assert 0.20 <= used["max"] <= 0.28 and used["paged"] > 0.90
    longer = account_under_load(sharegpt_like(1500, rate=3.0, seed=0), "oracle").shares["used"]
    assert 0.36 <= longer <= 0.44
    assert used["oracle"] == pytest.approx(longer, abs=0.03)


def test_the_aha_prediction_is_decided_by_the_run():
    asked = REGISTRY[ACCOUNT].predict()
    assert asked.options[asked.answer].text == "about 40 %"


def test_max_length_costs_max_what_its_power_of_two_says():
    """1,536 and 2,048 both reserve blocks of 2,048 and run six; 8,192 runs one, in the largest arena."""
    running = {n: table(ACCOUNT, max_len=n)["Max"][5] for n in (1024, 1536, 2048, 4096, 8192)}
    assert running == {1024: 12, 1536: 6, 2048: 6, 4096: 3, 8192: 1}


def test_paged_follows_the_load_until_memory_is_full():
    used = [view(ACCOUNT, load=load).numbers["paged_used"] for load in (1, 2, 3, 4)]
    assert used == sorted(used) and used[0] < 40 and used[-1] > 90


def test_paper_columns_are_the_papers():
    """P.vllm.batch (figure 13) and figure 2, quoted in L7.frag.sim."""
    assert list(FIGURE_2.values()) == [20.4, 26.8, 38.2, 96.3]
    figure_13 = {"ShareGPT-like": [7.00, 9.81, 13.62, 30.42], "Alpaca-like": [7.00, 43.24, 72.75, 132.44]}
    for chat, paper in figure_13.items():
        rows = table("fragmentation_account.at_once", chat=chat)
        assert [row[1] for row in rows.values()] == paper


def test_running_at_once():
    """L7.batch.sim: paged ÷ Max in 2.5-5; Max runs 6, in 15.7K slots 7. L7.alpaca: memory binds only Max."""
    default = view("fragmentation_account.at_once").numbers
    assert default["max"] == pytest.approx(6) and 2.5 <= default["paged"] / default["max"] <= 5
    assert view("fragmentation_account.at_once", slots=PAPER_SLOTS).numbers["max"] == pytest.approx(7)
    alpaca = view("fragmentation_account.at_once", chat="Alpaca-like", factor=1.0).numbers
    assert alpaca["max"] == pytest.approx(6)
    assert alpaca["oracle"] == pytest.approx(alpaca["paged"], rel=0.02)


def test_over_time_ends_when_its_policy_is_done():
    over_time = "fragmentation_account.over_time"
    ends = [view(over_time, policy=policy).numbers["duration_s"] for policy in POLICIES]
    assert ends == sorted(ends, reverse=True)


# A reader's own trace.

@pytest.fixture
def write(tmp_path):
    def made(*rows, name="mine.csv"):
        path = tmp_path / name
        path.write_text("\n".join(("Timestamp,Request tokens,Response tokens", *rows)) + "\n")
        return str(path)

    return made


def test_own_trace_is_stretched_to_the_load(write):
    path = write("10,100,50", "11,200,60", "14,300,70")
    requests = workload(path, load=4, max_len=2048)
    # Three arrivals make two gaps; at 4 requests/s these take 0.5 s, in the proportion 1 : 3.
    assert [r.arrival_s for r in requests] == [0.0, 0.125, 0.5]
    assert [r.num_input_tokens for r in requests] == [100, 200, 300]
    assert "mine.csv" in view(ACCOUNT, trace=path).note


def test_a_second_file_of_the_same_name_is_read_again(write):
    first = view(ACCOUNT, trace=write("0,100,50", "1,200,60"))
    assert view(ACCOUNT, trace=write("0,900,50", "1,800,60")).table != first.table


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (("0,100,50", "1,abc,50"), "line 3"),
        (("0,100,50", "1,-5,50"), "line 3"),
        (("3,100,50", "3,100,50"), "one instant"),
        (("0,9000,50", "1,9000,50"), "max_len"),
        ((), "no requests left"),
    ],
)
@pytest.mark.parametrize("explorer_id", [ACCOUNT, "fragmentation_account.over_time"])
def test_bad_traces_are_answered_with_an_error(write, explorer_id, rows, says):
    assert says in REGISTRY[explorer_id].state({"trace": write(*rows)})["error"]


def test_a_web_page_is_no_trace(tmp_path):
    page = tmp_path / "trace.csv"
    page.write_text("<!DOCTYPE html><html></html>")
    assert "line 1" in REGISTRY[ACCOUNT].state({"trace": str(page)})["error"]
    assert "cannot be read" in REGISTRY[ACCOUNT].state({"trace": str(tmp_path / "missing.csv")})["error"]


@pytest.mark.parametrize("name", ["AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"])
def test_real_traces_separate_max_the_oracles_and_paged(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not here")
    shown = view(ACCOUNT, trace=str(SHARED / name), max_len=8192)
    # Pow2 and Oracle are close: long prompts and short outputs mostly land in the same power of two.
    lowest, pow2, oracle, paged = (shown.numbers[f"{policy}_used"] for policy in POLICIES)
    assert lowest < min(pow2, oracle) and 1.4 * max(pow2, oracle) < paged
    assert name in shown.note


# Explorers without a server.

def test_both_refusals_happen_with_six_slots_free():
    """L7.buddy.demo1: 4 + 2 free and a request of 6 refused, apart and side by side."""
    apart, together, merged = (play(story) for story in STORIES.values())
    for moment in (apart, together):
        assert moment.refused == ("E", 6) and moment.num_free == 6 and moment.largest_free == 4
    (a, a_size), (b, _) = apart.free
    assert a + a_size < b
    (a, a_size), (b, _) = together.free
    assert a + a_size == b
    assert merged.refused is None


def test_merging_story_refuses_one_slot_for_padding_alone():
    full = play(STORIES["neighbors merge"][:4])
    assert full.refused == ("D", 1) and full.num_free == 0 and full.padding == 2
    assert "internal fragmentation" in view("fragmentation.buddy_map", story="neighbors merge", step=4).note


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("step", range(STEPS + 1))
def test_every_step_tiles_the_memory_and_is_drawn(story, step):
    moment = play(STORIES[story][:step])
    blocks = sorted([(start, size) for start, size, _, _ in moment.held] + list(moment.free))
    assert [start for start, _ in blocks] == [sum(size for _, size in blocks[:i]) for i in range(len(blocks))]
    assert sum(size for _, size in blocks) == 16
    drawn = view("fragmentation.buddy_map", story=story, step=step).picture
    assert ("refused" in drawn) is (moment.refused is not None)
    assert all(f">{name}</text>" in drawn for _, _, name, _ in moment.held)


def test_growth_oracles():
    """pedagogy.md 02, exercise 3: 1 + 2 + ... + 512 = 1,023; by steps 256 + 512 + 768 = 1,536."""
    rows = table("fragmentation.growth")
    assert rows["tokens copied"] == [1023, 1536]


@pytest.mark.parametrize(("tokens", "step"), [(1600, 64), (1024, 256), (16, 1024)])
def test_growth_lines_pass_through_the_marks(tokens, step):
    shown = view("fragmentation.growth", tokens=tokens, step=step).picture["data"]
    for line, mark in zip(shown[:2], shown[2:]):
        below = max(y for x, y in zip(line["x"], line["y"]) if x <= mark["x"][0])
        assert below == mark["y"][0]


def test_an_estimate_above_one_is_still_spelled_out():
    """Alpaca-like requests have 77.8 tokens on average; half of 512 is more than three times as many."""
    title = view("fragmentation.tail", chat="Alpaca-like", block_size=512).title
    assert re.search(r"half a block would be 3\d\d %", title)


def test_tail_oracles():
    """L7.blocksize.ex3 and .sim: 1.3-1.7 % at 16; at 256 between 15 and 26 %, below the estimate."""
    share = {size: view("fragmentation.tail", block_size=size).numbers for size in (1, 16, 256)}
    assert share[1]["share"] == 0
    assert 0.013 <= share[16]["share"] <= 0.017 and share[16]["estimate"] == pytest.approx(0.016, rel=0.015)
    assert 0.15 < share[256]["share"] < min(0.26, share[256]["estimate"])
    mean = sum(final_lengths("ShareGPT-like")) / len(final_lengths("ShareGPT-like"))
    assert mean == pytest.approx(499.3, rel=0.03)  # L7.mean.final


@few
@given(st.integers(20, 400), st.integers(2, 600), st.sampled_from(["oracle", "pow2", "max", "paged"]))
def test_life_is_the_sum_over_its_steps(prompt, output, memory):
    life = life_of(prompt, output, memory)
    assert life.used + life.reserved + life.internal == pytest.approx(1)
    if memory == "oracle":
        # Tokens in memory run from the prompt to prompt + output - 1; steps last about equally long.
        block = next_power_of_two(prompt + output)
        assert life.used == pytest.approx((prompt + (output - 1) / 2) / block, abs=0.01)
        assert life.internal == pytest.approx(1 - (prompt + output - 1) / block)


def test_life_oracle():
    """pedagogy.md 02, exercise 2: 48.8, 29.3, 21.9 %. The run does not store the last token: .35 points."""
    life = life_of(100, 300, "oracle")
    assert [life.used, life.reserved, life.internal] == pytest.approx([0.488, 0.293, 0.219], abs=0.0035)


def test_paging_reserves_next_to_nothing():
    assert view("fragmentation.slot_seconds", memory="paged").numbers["used"] > 0.97


def test_slot_seconds_prediction_is_decided_by_the_run():
    asked = REGISTRY["fragmentation.slot_seconds"].predict()
    assert asked.options[asked.answer].text == "about a third"


def test_areas_end_where_the_request_ends():
    used, reserved, internal = view("fragmentation.slot_seconds").picture["data"]
    # Prompt 161, 351 generated, the last one never stored: 511 of 512 slots, and one will never be used.
    assert (used["y"][0], reserved["y"][0], internal["y"][0]) == (161, 350, 1)
    assert (used["y"][-1], reserved["y"][-1], internal["y"][-1]) == (511, 0, 1)


@pytest.mark.parametrize("explorer_id", IDS)
def test_every_state_has_a_finding_as_title(explorer_id):
    titles = {state["title"] for states in REGISTRY[explorer_id].star().values() for state in states}
    assert len(titles) >= 4 and all(any(c.isdigit() for c in title) for title in titles)


# Exercises.

def test_buddy_padding_follows_from_the_question():
    """L7.buddy.ex2 by another route: the reader doubles 1 until it is large enough."""
    for seed in range(1, 20):
        problem = EXERCISES["fragmentation_exercises.buddy_padding"].draw(seed)
        sizes = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", problem.question)]
        blocks = []
        for size in sizes:
            block = 1
            while block < size:
                block *= 2
            blocks.append(block)
        assert check_answer(problem, f"{100 * (sum(blocks) - sum(sizes)) / sum(blocks):.1f} %").right
        assert "asked for" in check_answer(problem, repr((sum(blocks) - sum(sizes)) / sum(sizes))).reply


def test_reserved_share_agrees_with_the_run():
    for seed in range(1, 20):
        problem = EXERCISES["fragmentation_exercises.reserved_slot_seconds"].draw(seed)
        read = re.search(r"has (\d+) tokens and (\d+) are", problem.question)
        prompt, output = int(read[1]), int(read[2])
        assert life_of(prompt, output, "oracle").reserved == pytest.approx(problem.answer, rel=0.01)
        assert "nobody else" in check_answer(problem, "0").reply


def test_tokens_moved_has_a_closed_form():
    """Doubling to n = 2^k copies n - 1; steps of s to n = m s copy s m (m - 1) / 2."""
    rules = set()
    for seed in range(1, 30):
        problem = EXERCISES["fragmentation_exercises.tokens_moved"].draw(seed)
        tokens = int(re.search(r"to ([\d,]+) tokens", problem.question)[1].replace(",", ""))
        step = re.search(r"space of (\d+) slots", problem.question)
        rules.add(bool(step))
        if step:
            moves = tokens // int(step[1])
            assert problem.answer == int(step[1]) * moves * (moves - 1) // 2
        else:
            assert problem.answer == tokens - 1
    assert rules == {True, False}


def test_reservations_that_fit_round_the_length_up():
    """L7.slots.max6 and L7.paper.7req among the draws."""
    answers = {}
    for seed in range(1, 200):
        problem = EXERCISES["fragmentation_exercises.reservations_that_fit"].draw(seed)
        slots, max_len = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", problem.question)[:2])
        assert problem.answer == slots // next_power_of_two(max_len)
        answers[slots, max_len] = problem.answer
    assert answers[12596, 2048] == 6 and answers[15728, 2048] == 7


def test_half_a_block_is_right_for_small_blocks_and_wrong_for_the_largest():
    for seed in range(1, 13):
        search = EXERCISES["fragmentation_exercises.half_a_block_is_wrong"].draw(seed)
        verdicts = [search.check({"block_size": size}).right for size in search.controls[0].positions]
        assert not verdicts[0] and verdicts[-1]
        assert verdicts == sorted(verdicts)  # once wrong, larger blocks stay wrong
