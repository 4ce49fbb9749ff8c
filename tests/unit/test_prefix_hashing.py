"""Chained block hashes: equal exactly when the whole past is equal (cases C13, C14, C16)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hash_seeds import printed_under_hash_seeds

from kvlib.errors import ConfigError
from kvlib.prefix import block_digest, block_digests, root_digest
from kvlib.prefix.hashing import MAX_TOKEN

TOKENS = st.lists(st.integers(0, 2) | st.integers(0, MAX_TOKEN), max_size=12)


@settings(derandomize=True, deadline=None)
@given(a=TOKENS, b=TOKENS, block_size=st.integers(1, 5))
def test_digests_are_equal_exactly_where_the_prefixes_are(a, b, block_size):
    for number, (x, y) in enumerate(zip(block_digests(a, block_size), block_digests(b, block_size)), start=1):
        assert (x == y) == (a[: number * block_size] == b[: number * block_size])


@settings(derandomize=True, deadline=None)
@given(tokens=TOKENS, block_size=st.integers(1, 5))
def test_only_full_blocks_have_a_digest(tokens, block_size):
    digests = block_digests(tokens, block_size)
    assert len(digests) == len(tokens) // block_size
    assert all(len(digest) == 32 for digest in digests)


def test_one_changed_token_changes_its_block_and_all_later_ones():
    # L7.ex10: five full blocks of 16, a token of block 3 changed: the hashes of blocks 3, 4, 5 change
    tokens = list(range(80))
    before = block_digests(tokens, 16)
    tokens[40] = 999
    after = block_digests(tokens, 16)
    assert [number for number in range(1, 6) if before[number - 1] != after[number - 1]] == [3, 4, 5]


@pytest.mark.parametrize("num_common", [12, 13, 14, 15])
def test_lecture_example_shares_three_blocks_of_four(num_common):
    # L7.s8.2: a common prefix of 12 to 15 tokens at block size 4 gives 3 equal hashes, the 4th differs
    common = list(range(num_common))
    a, b = block_digests(common + [100] * 8, 4), block_digests(common + [200] * 8, 4)
    assert [x == y for x, y in zip(a[:4], b[:4])] == [True, True, True, False]
    changed = block_digests([7777, *common[1:]] + [100] * 8, 4)
    assert not set(changed) & set(a)


@pytest.mark.parametrize(
    "one, other",
    [
        ([5, 40], [36, 39]),  # C13: equal under a polynomial hash of base 31
        ([1, 23], [12, 3]),  # C13: equal as joined text
        ([1, 2], [2, 1]),
        ([0, 0], [0]),
        ([256], [1, 0]),  # equal as variable-width bytes
    ],
)
def test_different_tokens_have_different_keys(one, other):
    assert block_digest(root_digest(), one) != block_digest(root_digest(), other)


def test_same_tokens_cut_into_other_blocks_have_different_keys():  # C13
    fours, twos = block_digests(range(8), 4), block_digests(range(8), 2)
    assert not set(fours) & set(twos)


def test_unchained_hashes_would_take_a_middle_block_for_a_hit():
    # The counter-example of the chapter: equal tokens, other past. Chaining tells them apart.
    a, b = [1, 2, 3, 4, 5, 6], [9, 9, 3, 4, 5, 6]
    assert block_digest(root_digest(), a[2:4]) == block_digest(root_digest(), b[2:4])
    assert block_digests(a, 2)[1] != block_digests(b, 2)[1]


def test_hashes_are_the_same_in_every_process():  # C14
    program = (
        "from kvlib.prefix import block_digests as d; print(d(range(9), 4, [('lora', 'X'), ('tenant', 'Y')]))"
    )
    outputs = printed_under_hash_seeds(program)
    here = f"{block_digests(range(9), 4, [('lora', 'X'), ('tenant', 'Y')])}\n".encode()
    assert outputs == {here}


def test_equal_texts_under_different_tags_are_different_keys():  # C16
    keys = [
        (),
        [("lora", "X")],
        [("salt", "X")],
        [("model", "X")],
        [("lora", "X"), ("salt", "X")],
        [("loraX", "")],
    ]
    digests = {root_digest(key) for key in keys}
    assert len(digests) == len(keys)
    assert root_digest([("lora", "X"), ("salt", "Y")]) == root_digest([("salt", "Y"), ("lora", "X")])
    assert root_digest([("a", "b"), ("c", "d")]) != root_digest([("a", "bc"), ("d", "")])


@pytest.mark.parametrize("bad", [-1, MAX_TOKEN + 1, 1.0, "1", True, None])
def test_bad_token_is_refused(bad):
    with pytest.raises(ConfigError, match="tokens: "):
        block_digests([1, 2, bad], 2)


@pytest.mark.parametrize("bad", ["lora", ("lora",), ("lora", 1), ["lora", "X"], (1, "X"), ("a", "b", "c")])
def test_untagged_extra_key_is_refused(bad):
    with pytest.raises(ConfigError, match="extra_keys: "):
        root_digest([bad])


def test_doubled_tag_is_refused():
    with pytest.raises(ConfigError, match="each tag once"):
        root_digest([("lora", "X"), ("lora", "Y")])


@pytest.mark.parametrize("block_size", [0, -1, 1.5, "4", True])
def test_bad_block_size_is_refused(block_size):  # D12
    with pytest.raises(ConfigError, match="block_size: "):
        block_digests([1, 2, 3], block_size)


def test_input_shorter_than_a_block_has_no_digest():  # D12: 3 tokens at block size 4
    assert block_digests([1, 2, 3], 4) == []
