"""Chapter 13: what its explorers and exercises say, and a sample of its measurements made again.

What holds for every explorer is in test_explore_registry.py. The bands are around notes/real_kv.md, sections 2d
and 4, which measured other texts.
"""

import hashlib
import importlib.util
from pathlib import Path

import pytest
from shown import numbers

from kvlib.cost import break_even_bytes_per_s
from kvlib.explore import EXERCISES, REGISTRY, check_answer
from kvlib.figures import smaller_kv_data as data
from kvlib.figures.smaller_kv_bits import GRID_BITS, grid, scale_rows
from kvlib.specs import get_gpu, get_model

MODULES = ("smaller_kv", "smaller_kv_bits", "smaller_kv_bytes")
IDS = [i for i in REGISTRY if i.partition(".")[0] in MODULES]
MAKER = Path(data.__file__).with_name("data") / "make_smaller_kv.py"


# The measurements agree with what was known before.

@pytest.mark.parametrize("part, labels, low, high", [
    # real_kv.md, section 4, other texts: window .768, sinks .109, H2O .089, SnapKV-like .109 at 384 of 1,535.
    ("dropping", {"policy": "window", "budget": 384}, 0.5, 1.5),
    ("dropping", {"policy": "sinks + window", "budget": 384}, 0.07, 0.16),
    ("dropping", {"policy": "H2O", "budget": 384}, 0.05, 0.13),
    ("dropping", {"policy": "SnapKV", "budget": 384}, 0.06, 0.16),
    ("dropping", {"policy": "random", "budget": 768}, 0.5, 1.5),
    # Likewise: 2 bits .1700 along KIVI's axes, .4722 per token, .3517 values per channel; 4 bits .0047.
    ("axes", {"number_bits": 2, "key_axis": "per channel", "value_axis": "per token"}, 0.1, 0.35),
    ("axes", {"number_bits": 2, "key_axis": "per token", "value_axis": "per token"}, 0.3, 0.9),
    ("axes", {"number_bits": 2, "key_axis": "per channel", "value_axis": "per channel"}, 0.25, 0.9),
    ("axes", {"number_bits": 4, "key_axis": "per channel", "value_axis": "per token"}, 0.003, 0.008),
    # K4/V2 .0289, K2/V4 .1334.
    ("key_value_grid", {"key_bits": 4, "value_bits": 2}, 0.02, 0.06),
    ("key_value_grid", {"key_bits": 2, "value_bits": 4}, 0.09, 0.25),
])
def test_measurements_lie_near_the_earlier_ones(part, labels, low, high):
    assert low < data.find(part, **labels)["kl"] < high


def test_every_row_is_complete_and_the_same_setting_was_measured_alike():
    for count, policy in ((0, "window"), (4, "sinks + window")):
        for budget in (192, 384):
            kept = data.find("dropping", policy=policy, budget=budget)
            assert data.find("sinks", sinks=count, budget=budget)["kl"] == kept["kl"]
    for bits in (2, 4):
        again = data.find("axes", number_bits=bits, key_axis="per channel", value_axis="per token")
        assert again["kl"] == grid(bits, bits)["kl"]
    for part in ("formats", "key_value_grid", "axes", "dropping", "sinks", "sparse", "stacked"):
        for row in data.measured()[part]:
            by_text = row["kl_by_text"].values()
            assert 0 <= row["kl"] == pytest.approx(sum(by_text) / len(by_text), rel=1e-3)
            assert 0 < row["top1"] <= 1


# A sample of them, made again on the weights.

@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_smaller_kv", MAKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def licence_text(maker):
    """The text that ships with this repository, so it is there on every machine."""
    maker.torch.set_num_threads(1)
    model = maker.load_smollm(maker.get_backend("torch", "float32"))
    text, digest = maker.read_text("license", model, maker.SmolTokenizer(maker.GgufFile(maker.find_weights())))
    assert digest == data.measured()["provenance"]["texts"]["license"]["sha256"]
    return text


def test_a_sample_of_the_rows_can_be_made_again(maker, licence_text):
    texts = {"license": licence_text}
    made = [
        (maker.rounded_row(texts, *maker.kivi_axes(2, 2)), grid(2, 2)),
        (maker.row(texts, lambda text: text.with_kv(text.kept_kv("H2O", 384))),
         data.find("dropping", policy="H2O", budget=384)),
        (maker.row(texts, lambda text: text.with_pages(16, 384)), data.find("sparse", page_tokens=16, budget=384)),
    ]
    for now, stored in made:
        # float32 sums in another order move a KL divergence by far less; ties among tokens may go another way.
        assert now["kl"] == pytest.approx(stored["kl_by_text"]["license"], rel=0.03)


def test_weights_are_those_of_the_file(maker):
    digest = hashlib.sha256(maker.find_weights().read_bytes()).hexdigest()
    assert digest == data.measured()["provenance"]["model_sha256"]


# What the chapter says about them.

@pytest.mark.parametrize("explorer_id, answer", [
    ("smaller_kv.every_method", "almost vanishes"),
    ("smaller_kv.kept_blocks", "none, or nearly none"),
    ("smaller_kv_bits.key_value_bits", "4 for keys, 2 for values"),
    ("smaller_kv_bytes.stored_and_read", "slightly fewer"),
])
def test_predictions_are_decided_by_the_runs(explorer_id, answer):
    asked = REGISTRY[explorer_id].predict()
    assert asked.options[asked.answer].text == answer


def test_random_dropping_is_saved_by_the_first_token_alone(maker):
    """The chapter's riddle: its jump is where the draw first holds token 0."""
    blank = maker.eviction.AttentionSums(*maker.np.zeros((2, 1, 1, data.context_tokens())))
    for budget in data.BUDGETS:
        has_first = 0 in maker.eviction.at_random(blank, budget)
        assert (data.find("dropping", policy="random", budget=budget)["kl"] < 0.2) == has_first


def test_perplexity_as_drawn_is_a_ratio():
    row = {"perplexity_change": 0.5, "kl": 0.1, "top1": 0.9}
    assert [data.shown(row, measure) for measure in data.MEASURES] == [1.5, 0.1, pytest.approx(10)]


def test_quantized_bytes_count_their_scales():
    # (2 + 1) / 16 and (8 + 1) / 16 of the bytes.
    points = data.methods()[data.KIVI]
    assert points[0][0] == 3 / 16 and points[-1][0] == 9 / 16


def test_the_best_affordable_method_is_within_the_budget():
    for budget in data.BUDGETS:
        shares = [row[1] for row in REGISTRY["smaller_kv.every_method"].view(budget=budget).table[1:]]
        assert max(shares) <= 100 * budget / data.context_tokens()


def test_scales_show_every_format_of_that_width():
    assert {bits: len(scale_rows(bits)) for bits in (8, 4, 2)} == {8: 3, 4: 5, 2: 4}


def test_savings_multiply():
    # 5 bits of 16 on half of the tokens.
    found = numbers("smaller_kv_bits.stacked", budget=768, number_bits=4)
    assert found["bytes_percent"] == pytest.approx(100 * 5 / 16 / 2)


def test_sparse_attention_reads_its_index():
    # A quarter in pages of 16: 1/4 + 1/16.
    picked = numbers("smaller_kv_bytes.sparse_pages", budget=384, page_tokens=16)
    assert picked["read_percent"] == pytest.approx(31.25)
    found = numbers("smaller_kv_bytes.stored_and_read")
    assert found["sparse_read_gb"] / found["everything_gb"] == pytest.approx(0.3125)
    assert found["sparse_stored_gb"] / found["everything_gb"] == pytest.approx(1.0625)


def test_attention_kind_oracles():
    """L9.breakeven8b: 5.58 GB/s for Llama-3-8B as built (GQA); L9.breakeven.gqa: a quarter of MHA's."""
    found = numbers("smaller_kv_bytes.attention_kinds")
    assert found["gqa_gb_per_s"] == pytest.approx(5.58, rel=0.01)
    assert found["gqa_gb_per_s"] / found["mha_gb_per_s"] == 0.25
    # DeepSeek-V2: a latent of 512 + 64 numbers against 2 · 8 · 128 of GQA.
    assert found["mla_gb_per_s"] / found["gqa_gb_per_s"] == pytest.approx(576 / 2048)


@pytest.mark.parametrize("explorer_id", IDS)
def test_every_state_is_a_finding_and_none_an_error(explorer_id):
    states = [state for states in REGISTRY[explorer_id].star().values() for state in states]
    assert not [state["error"] for state in states if "error" in state]
    assert all(any(c.isdigit() for c in state["title"]) for state in states)


# Exercises.

def test_true_bits_follow_from_the_question():
    for seed in range(1, 20):
        problem = EXERCISES["smaller_kv_exercises.true_bits"].draw(seed)
        bits = int(problem.question.split("-bit codes")[0].split()[-1])
        group = int(problem.question.split("group of ")[1].split()[0])
        assert check_answer(problem, repr(bits + 32 / group)).right
        assert "as well" in check_answer(problem, str(bits)).reply


def test_slots_gained_starts_from_the_oracle():
    """L7.slots.12596."""
    for seed in range(1, 10):
        problem = EXERCISES["smaller_kv_exercises.slots_gained"].draw(seed)
        assert "12,596 slots" in problem.question and problem.answer > 3 * 12596


def test_break_even_follows_from_the_numbers_in_the_question():
    for seed in range(1, 12):
        problem = EXERCISES["smaller_kv_exercises.kind_ratio"].draw(seed)
        words = problem.question.replace(",", "").split()
        before, after = (int(words[i - 1]) for i, word in enumerate(words) if word == "bytes")
        gb_per_s = float(words[words.index("GB/s.") - 1])
        assert check_answer(problem, repr(gb_per_s * after / before)).right


def test_lecture_9_exercise_1c():
    """L9.breakeven.qwen: 70 kB per token at the same work needs 1.6 GB/s."""
    qwen, h100 = get_model("qwen2.5-14b"), get_gpu("h100-80gb")
    as_built = break_even_bytes_per_s(qwen, h100, 8000)
    assert as_built * 70e3 / qwen.shape.kv_bytes_per_token() == pytest.approx(1.6e9, rel=0.01)


@pytest.mark.parametrize("name", ["pick_axes", "cheapest_pair"])
def test_searches_accept_exactly_the_best(name):
    for seed in range(1, 13):
        search = EXERCISES[f"smaller_kv_exercises.{name}"].draw(seed)
        first, second = (control.positions for control in search.controls)
        names = [control.name for control in search.controls]
        right = [(a, b) for a in first for b in second if search.judge(**dict(zip(names, (a, b)))).right]
        assert tuple(search.known[n] for n in names) in right and len(right) <= 2
        if name == "cheapest_pair":
            assert len({grid(*pair)["bits"] for pair in right}) == 1 and set(first) == set(GRID_BITS)
