"""The true KV sizes of 30 published models (tests/data/kv_sizes.json, from ../shared/cases/kv_sizes.yaml)."""

import json
from pathlib import Path

import pytest

from kvlib.specs import KvShape
from kvlib.specs.hf_file import parse_config

ROWS = parse_config((Path(__file__).parents[1] / "data" / "kv_sizes.json").read_text(encoding="utf-8"))[
    "models"
]


@pytest.fixture(params=ROWS, ids=[row["model"] for row in ROWS])
def row(request):
    return request.param


def test_bytes_per_token_are_the_true_ones(row):  # cases B01, B03, B07, B12, B15
    size = KvShape.from_hf_config(row["config"]).kv_bytes_per_token()
    assert size == row["kv_bytes_per_token_bf16"]
    assert size not in row["wrong_answers"]


def test_the_groups_of_layers_are_the_true_ones(row):
    def key(layers, elements, window):
        return layers, elements, window or 0

    found = sorted(
        key(g.layers, g.elements_per_token, g.window) for g in KvShape.from_hf_config(row["config"]).groups
    )
    assert found == sorted(key(g["layers"], g["elements_per_token"], g["window"]) for g in row["groups"])


def test_growth_slows_exactly_at_the_window(row):
    shape, window = KvShape.from_hf_config(row["config"]), row["window_tokens"]
    if window is None:
        assert shape.kv_bytes(100_001) - shape.kv_bytes(100_000) == row["kv_bytes_per_token_bf16"]
        return
    assert shape.kv_bytes(window) - shape.kv_bytes(window - 1) == row["kv_bytes_per_token_bf16"]
    beyond = row["kv_bytes_per_extra_token_beyond_window_bf16"]
    assert shape.kv_bytes(window + 1) - shape.kv_bytes(window) == beyond
    assert (
        shape.kv_bytes(window + 1, policy="uniform") - shape.kv_bytes(window, policy="uniform")
        == row["kv_bytes_per_token_bf16"]
    )


def test_index_and_cross_attention_lines(row):
    shape = KvShape.from_hf_config(row["config"])
    assert shape.index_elements_per_token == row["index_elements_per_token"]
    assert shape.cross_bytes_per_encoder_token() == row["cross_bytes_per_encoder_token_bf16"]


def test_a_path_and_a_mapping_are_read_alike(row, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(row["config"]), encoding="utf-8")
    assert KvShape.from_hf_config(path) == KvShape.from_hf_config(row["config"])


def test_reading_does_not_change_the_config(row):
    before = json.dumps(row["config"])
    KvShape.from_hf_config(row["config"])
    assert json.dumps(row["config"]) == before
