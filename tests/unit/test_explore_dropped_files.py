"""Whatever a reader drops or types: a picture or a sentence that helps, never an exception."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from kvlib.explore import REGISTRY, File, Text

FILES = [(i, c.name) for i in sorted(REGISTRY) for c in REGISTRY[i].controls if isinstance(c, File)]
TEXTS = [(i, c.name) for i in sorted(REGISTRY) for c in REGISTRY[i].controls if isinstance(c, Text)]

ROW = b'{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}\n'
# None of these is a config, a request trace or a bandwidth trace.
BROKEN = {
    "empty": b"",
    "blank lines": b"\n\n\n",
    "web page": b"<!DOCTYPE html><html><body>302 Found</body></html>",
    "binary": random.Random(1).randbytes(5000),
    "not UTF-8": '{"timestamp": é'.encode("latin-1"),
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "cut gzip": gzip.compress(ROW * 50)[:-9],
    "nested too deeply": b'{"a":' * 100_000,
    "JSON that is no object": b"[1, 2, 3]",
    "NaN": ROW.replace(b"600", b"NaN"),
    "a model that does not exist": b'{"model_type": "<script>alert(1)</script>"}',
    "a bandwidth beyond any float": b"0,1e308\n1,1e308\n",
    "a speed of zero": b"0,0\n",
}


@pytest.mark.parametrize("explorer_id, name", FILES)
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_refused_in_words(explorer_id, name, what, tmp_path):
    path = tmp_path / "dropped"
    path.write_bytes(BROKEN[what])
    answer = json.loads(REGISTRY[explorer_id].json(json.dumps({name: str(path)})))
    assert set(answer) == {"error"} and len(answer["error"]) > 20


@pytest.mark.parametrize("explorer_id, name", FILES)
@pytest.mark.parametrize("path", ["/no/such/file", "/", "a\0b", "\ud800", "x" * 5000])
def test_a_path_that_is_no_file_is_refused_in_words(explorer_id, name, path):
    answer = json.loads(REGISTRY[explorer_id].json(json.dumps({name: path})))
    assert set(answer) == {"error"} and "got" in answer["error"] or "cannot be read" in answer["error"]


@pytest.mark.parametrize("explorer_id, name", TEXTS)
@pytest.mark.parametrize("text", ["", "\0", "\ud800", "<script>alert(1)</script>", "9" * 300, "nan", "🙂" * 99, "-5"])
def test_odd_text_is_shown_or_refused_in_words(explorer_id, name, text):
    answer = json.loads(REGISTRY[explorer_id].json(json.dumps({name: text})))
    assert answer.get("error") or answer["picture"]
    assert "<script>" not in json.dumps(answer.get("picture", ""))


def test_a_log_with_impossible_numbers_is_refused():
    nines = "9" * 400
    for log in (f"GPU KV cache size: {nines} tokens", f"Maximum concurrency for 1 tokens per request: {nines}.0x"):
        answer = json.loads(REGISTRY["kv_cache.engine_log"].json(json.dumps({"log": log})))
        assert "expected a finite number" in answer["error"]


def test_a_model_without_a_cache_has_nothing_to_deal_out(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "mamba"}')
    answer = json.loads(REGISTRY["kv_cache.tensor_parallel"].json(json.dumps({"config": str(path)})))
    assert "caches nothing per token" in answer["error"]
