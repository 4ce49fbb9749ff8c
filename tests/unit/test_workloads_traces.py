"""Trace files: three formats, and the ways a downloaded file goes wrong (cases D01 to D14)."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError, TraceError
from kvlib.workloads import Request, busiest_window, mean_lengths, read_trace, requests_per_minute

TINY = Path(__file__).parents[1] / "data" / "traces"
SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared")) / "data"
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT_HEADER = "Timestamp,Request tokens,Response tokens\n"


def row(timestamp=0, input_length=3, output_length=1, hash_ids=(7,), **more):
    fields = {"timestamp": timestamp, "input_length": input_length, "output_length": output_length}
    return json.dumps({**fields, "hash_ids": list(hash_ids), **more})


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="trace"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def real(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not here")
    return SHARED / name


# --- the three formats ---


def test_mooncake_rows_become_requests_with_block_ids():
    trace = read_trace(TINY / "mooncake.jsonl", block_size=4)
    assert trace.requests == (
        Request(0.0, 6, 3, (0, 1)),
        Request(3.0, 4, 1, (0,)),
        Request(3.0, 9, 2, (0, 1, 2)),
    )
    assert (trace.name, trace.format, trace.block_size, trace.dropped) == ("mooncake.jsonl", "mooncake", 4, 0)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**4), st.integers(1, 9000), st.integers(0, 900)), min_size=1, max_size=9
    )
)
def test_mooncake_round_trip_in_order_of_time_then_row(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("trace") / "trace"
    ids = [
        tuple(random.Random(n).randrange(2**64) for _ in range(-(-size // 512)))
        for n, (_, size, _) in enumerate(rows)
    ]
    path.write_text("\n".join(row(ms, size, out, ids[n]) for n, (ms, size, out) in enumerate(rows)))
    expected = [Request(ms / 1000, size, out, ids[n]) for n, (ms, size, out) in enumerate(rows)]
    expected.sort(key=lambda request: request.arrival_s)
    assert read_trace(path).requests == tuple(expected)


def test_azure_time_counts_from_the_earliest_row_in_microseconds():
    # 00:00:00.1805904 - 23:59:59.6805900 = 0.5000004 s, to the microsecond 0.5
    trace = read_trace(TINY / "azure.csv")
    assert trace.requests == (Request(0.0, 374, 44), Request(0.5, 396, 109))
    assert (trace.format, trace.block_size) == ("azure", None)


def test_azure_accepts_crlf_shuffled_columns_and_the_utc_mark_of_2024(write):
    content = (
        "GeneratedTokens,TIMESTAMP,ContextTokens\r\n"
        "7,2024-05-10 00:00:01.009930+00:00,2162\r\n3,2024-05-10 00:00:00+00:00,9\r\n"
    )
    assert read_trace(write(content)).requests == (Request(0.0, 9, 3), Request(1.00993, 2162, 7))


def test_burstgpt_failed_rows_are_dropped_and_counted():  # D06
    trace = read_trace(TINY / "burstgpt.csv")
    assert trace.requests == (Request(5.0, 472, 18), Request(118.0, 417, 276))
    assert (trace.format, trace.num_failed, trace.dropped, trace.problems) == ("burstgpt", 1, 1, ())


def test_burstgpt_extra_columns_in_any_order(write):  # D06
    content = "Session ID,Response tokens,Elapsed time,Timestamp,Request tokens\nab,18,1.2,45.5,472\n"
    assert read_trace(write(content)).requests == (Request(45.5, 472, 18),)


def test_real_mooncake_file():  # D02, D09 and ../shared/data/README.md
    trace = read_trace(real("mooncake_conversation_trace.jsonl"))
    assert len(trace.requests) == 12_031
    assert sum(len(request.block_ids) for request in trace.requests) == 288_500
    assert len({request.arrival_s for request in trace.requests}) == 1_180
    assert trace.duration_s == 3536.999
    assert [round(mean, 2) for mean in mean_lengths(trace.requests)] == [12035.06, 342.62]


def test_real_azure_file():  # ../shared/data/README.md: 19,366 rows
    trace = read_trace(real("AzureLLMInferenceTrace_conv.csv"))
    assert len(trace.requests) == 19_366
    # By hand from the first and last row: 19:14:08.4025270 - 18:15:46.6805900
    assert trace.duration_s == 3501.721937


# --- units and rates ---


def test_milliseconds_are_not_seconds(write):  # D02
    path = write("\n".join(row(ms) for ms in [*range(0, 3_500_000, 50_000), 3_536_999]))
    assert read_trace(path).duration_s == 3536.999
    assert read_trace(path, time_unit="us").duration_s == 3.536999
    with pytest.warns(UserWarning, match="time unit"):
        assert read_trace(path, time_unit="s").duration_s == 3_536_999


def test_too_fast_a_trace_warns_too(write):  # D02: 50 requests in 0.98 ms are 51,020 per second
    path = write("\n".join(row(us) for us in range(0, 1000, 20)))
    with pytest.warns(UserWarning, match="time unit"):
        read_trace(path, time_unit="us")


def test_requests_per_minute_and_busiest_window():  # D11: an idle start, then a busy minute
    idle = [Request(30.0 * n, 1, 1) for n in range(10)]
    busy = [Request(400.0 + n / 4, 1, 1) for n in range(240)]
    requests = idle + busy
    assert requests_per_minute(requests) == [2, 2, 2, 2, 2, 0, 80, 160]  # 400 s lies in minute 6: 20 s at 4/s
    window = busiest_window(requests, 60)
    assert window == tuple(busy)
    assert len(window) / 60 > 1
    # Of two equally busy windows the earlier one; the end is excluded.
    two = [Request(float(t), 1, 1) for t in (0, 9, 10, 100, 109, 110)]
    assert busiest_window(two, 10) == tuple(two[:2])
    for bad in (0, -1, float("nan"), "60"):
        with pytest.raises(ConfigError, match="window_s"):
            busiest_window(requests, bad)
    for helper in (requests_per_minute, lambda none: busiest_window(none, 60)):
        with pytest.raises(ConfigError, match="requests"):
            helper([])


# --- bad rows: refused with the line, or skipped and counted ---


@pytest.mark.parametrize(
    "bad, why",
    [
        (row(hash_ids=[1e18]), "block_ids"),  # D03: a float id would merge neighbors
        (row(hash_ids=[7.0]), "block_ids"),
        (row(hash_ids=[True]), "block_ids"),
        (row(hash_ids=[-1]), "block_ids"),
        (row(hash_ids=["7"]), "block_ids"),
        (row(hash_ids=[7, 8]), "expected 1"),
        (row(hash_ids=[]), "expected 1"),
        (row(timestamp=-5), "arrival_s"),  # D05
        (row(timestamp=float("nan")), "NaN"),  # D05
        (row(timestamp=float("inf")), "Infinity"),  # D05
        (row(timestamp="12"), "timestamp"),  # D05
        (row(timestamp=True), "timestamp"),
        (row(timestamp=None), "timestamp"),
        (row().replace('"timestamp": 0', '"timestamp": 1e400'), "timestamp"),
        (row().replace('"timestamp": 0', '"timestamp": 1' + 500 * "0"), "arrival_s|timestamp"),
        (row().replace('"timestamp": 0', '"timestamp": 1' + 5000 * "0"), "digits"),
        (row(input_length=0, hash_ids=[]), "num_input_tokens"),
        (row(output_length=-1), "num_output_tokens"),
        (row(output_length=1.5), "num_output_tokens"),
        ('{"timestamp": 0, "input_length": 3}', "output_length, hash_ids missing"),
        (row().replace("[7]", "7"), "hash_ids"),
        ("[1, 2]", "object"),
        ('{"timestamp": ' + "[" * 100_000, "nested"),
        ('{"timestamp": 3000, "input_length": 4, "outp', "not a JSON object"),  # D14
        (b"\xff\xfe{}", "UTF-8"),
    ],
)
def test_bad_mooncake_row(write, bad, why):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path = write(b"\n".join([row(0).encode(), bad, row(2000).encode()]))
    with pytest.raises(TraceError, match=rf"line 2: .*({why})"):
        read_trace(path)
    trace = read_trace(path, strict=False)
    assert [request.arrival_s for request in trace.requests] == [0.0, 2.0]
    assert trace.dropped == 1
    assert "line 2" in trace.problems[0]


@pytest.mark.parametrize(
    "stamp", ["", "NaN", "5", "-2023-11-16 18:15:46", "2023-13-16 18:15:46", "2023-11-16T18:15:46"]
)
def test_bad_azure_time(write, stamp):  # D05
    path = write(f"{AZURE_HEADER}2023-11-16 18:15:46.5,9,9\n{stamp},1,1\n")
    with pytest.raises(TraceError, match="line 3: TIMESTAMP: "):
        read_trace(path)
    assert read_trace(path, strict=False).dropped == 1


@pytest.mark.parametrize(
    "bad", ["nan,1,1", "inf,1,1", "-5,1,1", "1_0,1,1", "1,1.5,1", "1,-2,1", "1,2", "1,2,3,4", '1,"2,3']
)
def test_bad_burstgpt_row(write, bad):  # D05, D06
    path = write(f"{BURSTGPT_HEADER}1,9,9\n{bad}\n")
    with pytest.raises(TraceError, match="line 3: "):
        read_trace(path)
    assert read_trace(path, strict=False).dropped == 1


def test_middle_line_cut_in_half():  # D14
    with pytest.raises(TraceError, match="line 2"):
        read_trace(TINY / "mooncake_bad_line.jsonl", block_size=4)
    assert len(read_trace(TINY / "mooncake_bad_line.jsonl", strict=False, block_size=4).requests) == 2


def test_ids_beyond_32_bits_stay_distinct(write):  # D03
    ids = [1, 4294967297, 2**63, 2**63 + 1, 10**18, 10**18 + 1]
    trace = read_trace(write("\n".join(row(n, hash_ids=[i]) for n, i in enumerate(ids))))
    assert [request.block_ids for request in trace.requests] == [(i,) for i in ids]


def test_equal_times_keep_file_order(write):  # D09
    order = list(range(20))
    random.Random(0).shuffle(order)
    trace = read_trace(
        write("\n".join([row(5000, hash_ids=[99])] + [row(3000, hash_ids=[i]) for i in order]))
    )
    assert [request.block_ids[0] for request in trace.requests] == [*order, 99]


# --- files that are no trace ---


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "name, looks_like", [("html_page.jsonl", "HTML"), ("lfs_pointer.jsonl", "Git LFS pointer")]
)
def test_impostors_are_named(name, looks_like, strict):  # D14
    with pytest.raises(TraceError, match=f"line 1: .*{looks_like}"):
        read_trace(TINY / name, strict)


@pytest.mark.parametrize("header", ["a,b,c", "hello"])
def test_unknown_header_lists_what_was_expected(write, header):
    with pytest.raises(TraceError, match="line 1: .*ContextTokens.*Request tokens"):
        read_trace(write(f"{header}\n1,2,3\n"))


@pytest.mark.parametrize(
    "header, wanted",
    [
        ("Timestamp,Response tokens", "Request tokens"),  # D06
        ("Timestamp,Request tokens,Response tokens,Timestamp", "Timestamp"),
        ("TIMESTAMP,ContextTokens", "GeneratedTokens"),
    ],
)
def test_missing_or_doubled_column_lists_expected_names(write, header, wanted):
    with pytest.raises(TraceError, match=f"line 1: .*expected.*{wanted}"):
        read_trace(write(f"{header}\n1,2,3,4\n"))


@pytest.mark.parametrize("content", ["", "\n \n", AZURE_HEADER, BURSTGPT_HEADER + "5,9,0\n"])
def test_empty_result_is_an_error(write, content):  # D06
    for strict in (True, False):
        with pytest.raises(TraceError, match="empty|no requests"):
            read_trace(write(content), strict)


@pytest.mark.parametrize("name", ["mooncake.jsonl", "azure.csv", "burstgpt.csv"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_byte_order_mark_and_gzip_load_the_same(write, name, bom, pack):  # D08
    block_size = 4 if name.endswith("jsonl") else None
    packed = write(pack(bom + (TINY / name).read_bytes()))
    assert (
        read_trace(packed, block_size=block_size).requests
        == read_trace(TINY / name, block_size=block_size).requests
    )


def test_cut_gzip(write):  # D14: the rows before the cut are kept only when reading leniently
    rows = [row(n, hash_ids=[random.Random(n).randrange(2**64)]) for n in range(2000)]
    content = gzip.compress("\n".join(rows).encode())
    path = write(content[: len(content) // 2])
    with pytest.raises(TraceError, match=r"line \d+: the gzip data is cut short"):
        read_trace(path)
    trace = read_trace(path, strict=False)
    assert 0 < len(trace.requests) < 2000
    assert trace.dropped == 1


def test_damaged_gzip(write):  # D14
    content = bytearray(gzip.compress((row() + "\n").encode() * 50))
    content[-6] ^= 255  # the checksum
    with pytest.raises(TraceError, match="gzip"):
        read_trace(write(bytes(content)))


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            read_trace(path)


# --- arguments ---


@pytest.mark.parametrize("block_size", [0, -1, 1.5, True, "16"])
def test_bad_block_size(block_size):  # D12
    with pytest.raises(ConfigError, match="block_size"):
        read_trace(TINY / "mooncake.jsonl", block_size=block_size)


def test_input_shorter_than_one_block_is_one_partial_block(write):  # D12
    assert read_trace(write(row(input_length=3, hash_ids=[5])), block_size=4).requests[0].block_ids == (5,)


def test_bad_time_unit():
    with pytest.raises(ConfigError, match="time_unit: got 'min', expected one of s, ms, us"):
        read_trace(TINY / "mooncake.jsonl", block_size=4, time_unit="min")


@pytest.mark.parametrize("option", [{"block_size": 16}, {"time_unit": "s"}])
def test_options_that_do_not_apply_are_refused(option):
    with pytest.raises(ConfigError, match="azure format fixes it"):
        read_trace(TINY / "azure.csv", **option)
