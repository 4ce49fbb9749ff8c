"""The public names refuse what makes no sense, with a typed error that names the field."""

from __future__ import annotations

import numpy as np
import pytest

from kvlib.cachegen.bandwidth import read_bandwidth, steady
from kvlib.errors import ConfigError, TraceError
from kvlib.prefix import BlockCache, RadixCache, replay, root_digest
from kvlib.specs import KvShape, gbps
from kvlib.tiers import effective_bandwidth
from kvlib.workloads import read_trace, sharegpt_like

NO_FLOAT = 10**400      # a whole number beyond the largest float (about 1.8e308)
SHAPE = KvShape.uniform(layers=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(
    "field, call",
    [
        ("budget_bytes", lambda: SHAPE.max_tokens(NO_FLOAT)),
        ("gigabits_per_s", lambda: gbps(NO_FLOAT)),
        ("bytes_per_s", lambda: gbps(1.7e308)),
        ("rate", lambda: sharegpt_like(3, rate=NO_FLOAT, seed=1)),
        ("page_tokens", lambda: effective_bandwidth(NO_FLOAT, 131072, 32, "pcie5-x16")),
        ("kv_bytes_per_token", lambda: effective_bandwidth(32, NO_FLOAT, 32, "pcie5-x16")),
        ("overhead_s", lambda: effective_bandwidth(32, 131072, 32, "pcie5-x16", overhead_s=NO_FLOAT)),
        ("bytes_per_s", lambda: steady(1.7e308)),
    ],
)
def test_numbers_beyond_any_float(field, call):
    with pytest.raises(ConfigError, match=f"{field}: got .*, expected a finite number"):
        call()


@pytest.mark.parametrize("bad", [None, 7, 1.5, True, np.int64(4)])
def test_tokens_and_keys_must_be_sequences(bad):
    cache, tree = BlockCache(8, 4), RadixCache(64)
    for call in (lambda: cache.allocate("a", bad), lambda: tree.insert(bad), lambda: tree.match_prefix(bad)):
        with pytest.raises(ConfigError, match="tokens: got .*, expected a sequence of token ids"):
            call()
    with pytest.raises(ConfigError, match="extra_keys: got .*, expected pairs"):
        root_digest(bad)


@pytest.mark.parametrize("bad", [np.int64(4), np.float64(4), True, -1, 1.0, "4", None, 2**64])
def test_a_token_is_a_plain_whole_number(bad):
    cache, tree = BlockCache(8, 4), RadixCache(64)
    cache.allocate("a", [1])
    for call in (lambda: cache.append("a", bad), lambda: cache.allocate("b", [bad]), lambda: tree.insert([bad])):
        with pytest.raises(ConfigError, match="token"):
            call()
    assert cache.num_tokens("a") == 1 and cache.num_free == 7


@pytest.mark.parametrize("bad", [7, "print", True, b"digest"])
def test_on_evict_must_be_callable(bad):
    # Found out at the first eviction it would break a call that had changed blocks already.
    with pytest.raises(ConfigError, match="on_evict: got .*, expected a function"):
        BlockCache(8, 4, on_evict=bad)


@pytest.mark.parametrize("bad", [None, 7, "trace.jsonl", [(1, 2)], {}])
def test_replay_wants_a_trace(bad):
    with pytest.raises(ConfigError, match="trace: got a .*, expected a Trace"):
        replay(bad)


@pytest.mark.parametrize("bad", [0, 1, True, 1.5, None, np.int64(0), [], "a\0b", "\ud800"])
def test_read_trace_wants_a_path(bad):
    # 0 is the number of standard input: open(0) would wait there for ever.
    with pytest.raises(TraceError, match="path: got .*, expected the path of a trace file"):
        read_trace(bad)


def test_a_binary_file_is_called_that(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(b"Timestamp,Request tokens,Response tokens\n1,\xff\xfe,3\n")
    with pytest.raises(TraceError, match="line 2: got byte 0xff, expected text in UTF-8"):
        read_trace(path)


@pytest.mark.parametrize("bad", ["/no/such/file", "/", "a\0b", "x" * 5000, None])
def test_a_bandwidth_trace_that_cannot_be_read(bad):
    with pytest.raises(TraceError, match="cannot be read .*, expected the path of a bandwidth trace"):
        read_bandwidth(bad)
