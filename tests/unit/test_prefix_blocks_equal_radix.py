"""Two designs, one answer: at equal granularity the block cache and the radix cache hit the same tokens.

Requests come one after the other. A prompt is some whole blocks and a shorter tail, which the block cache
holds in a block of its own and the radix cache does not store. That block is reused first, so ``N + 1``
blocks cache exactly what ``N`` pages do.
"""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.prefix import BlockCache, RadixCache
from kvlib.workloads import read_trace

SHARED = Path(os.environ.get("KVLIB_SHARED", Path(__file__).parents[3] / "shared"))


def compare(prompts, capacity_pages, page_size):
    blocks = BlockCache(capacity_pages + 1, page_size)
    radix = RadixCache(capacity_pages * page_size, page_size)
    for seq, tokens in enumerate(prompts):
        hit = radix.match_prefix(tokens)
        assert blocks.allocate(seq, tokens) == hit
        assert radix.insert(tokens) == len(tokens) // page_size * page_size - hit
        blocks.free(seq)
    blocks.check_integrity()
    radix.check_integrity()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=5, max_size=60),
    capacity_pages=st.integers(8, 20),
    page_size=st.sampled_from([2, 4, 16]),
)
def test_random_prompts(prompts, capacity_pages, page_size):
    compare(
        [[t for t in prompt for _ in range(page_size)] + [0] for prompt in prompts], capacity_pages, page_size
    )


@pytest.mark.parametrize("capacity_pages", [300, 1000, 5000])
def test_real_prompts(capacity_pages):
    path = SHARED / "data" / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the Mooncake trace is not here")
    requests = read_trace(path).requests[:1500]
    # Two tokens per block id keep the comparison quick; what the ids share, the tokens share.
    compare([[block_id for block_id in r.block_ids for _ in "ab"] + [0] for r in requests], capacity_pages, 2)
