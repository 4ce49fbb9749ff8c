"""Chapter 7: the self-checked exercises."""

from __future__ import annotations

from functools import cache

from kvlib.explore import Problem, Range, Search, Slip, Verdict, exercise
from kvlib.prefix import BlockCache, RadixCache, block_digests, lru_hit_ratios, lru_knee, replay
from kvlib.specs import get_model
from kvlib.specs.names import spoken
from kvlib.workloads import conversation_like

TB = 1e12
MODELS_ASKED = ("llama-2-70b", "llama-3-8b", "qwen2.5-14b", "deepseek-v3")
TRACE_REQUESTS = 300
WITHIN = 0.02


@exercise(title="A hole in the prefix")
def hole(rng) -> Problem:
    block_size, blocks = 16, rng.choice((5, 6, 7))
    lost = rng.randrange(2, blocks)
    prompt = range(blocks * block_size + 1)
    cache_ = BlockCache(num_blocks=2 * blocks, block_size=block_size)
    cache_.allocate("first", prompt)
    cache_.free("first")
    cache_.evict(block_digests(prompt, block_size)[lost - 1])
    answer = cache_.allocate("again", prompt) // block_size
    kept = ", ".join(str(number) for number in range(1, blocks + 1) if number != lost)
    return Problem(
        f"A prompt fills {blocks} blocks and one more token. Of its blocks, {kept} are still cached. How many"
        " blocks does the prompt reuse?",
        answer,
        "blocks",
        f"Only blocks from the start without a gap can be reused: {answer}. Those behind the hole are"
        " correct, but the engine computes a prompt from one point on.",
        slips=(
            Slip(
                blocks - 1,
                "You counted those behind the hole. An engine computes from the first missing block on.",
            ),
            Slip(answer + 1, "Block numbers start at 1 here, and the missing one does not count."),
        ),
    )


@exercise(title="Everything is cached")
def last_block(rng) -> Problem:
    block_size, blocks = rng.choice((8, 16, 32)), rng.choice((3, 4, 5, 6))
    tokens = block_size * blocks
    cache_ = BlockCache(num_blocks=2 * blocks, block_size=block_size)
    cache_.allocate("first", range(tokens))
    cache_.free("first")
    answer = tokens - cache_.allocate("again", range(tokens))
    return Problem(
        f"A prompt of {tokens} tokens is sent twice, with blocks of {block_size} tokens and room for"
        " everything. How many tokens does the second request still compute?",
        answer,
        "tokens",
        "The last token must be computed, because its logits decide the next word. Hits are whole blocks, so"
        f" the last block of {block_size} tokens is computed: {answer}.",
        slips=(
            Slip(0, "Then nothing would give you the logits of the last token."),
            Slip(1, "One token would be enough, but an engine reuses whole blocks."),
            Slip(tokens, "That is the first request. The second finds all blocks but the last."),
        ),
    )


@exercise(title="Blocks against a radix tree")
def shared_tokens(rng) -> Problem:
    block_size = rng.choice((16, 32))
    shared = rng.randrange(3 * block_size + 1, 6 * block_size)
    if shared % block_size == 0:
        shared += 5
    first, second = ([*range(shared), *range(start, start + 40)] for start in (10_000, 20_000))
    blocks, tree = BlockCache(100, block_size), RadixCache(1_000)
    blocks.allocate("first", first)
    tree.insert(first)
    by_blocks, by_tokens = blocks.allocate("second", second), tree.match_prefix(second)
    return Problem(
        f"Two prompts of {len(first)} tokens have their first {shared} in common. A radix tree that shares"
        f" single tokens finds all of them. How many fewer does a cache of {block_size}-token blocks find?",
        by_tokens - by_blocks,
        "tokens",
        f"{shared} // {block_size} = {by_blocks // block_size} whole blocks are {by_blocks} tokens; the tree"
        f" finds {by_tokens}. The difference is {by_tokens - by_blocks}.",
        slips=(
            Slip(by_blocks, "That is what the blocks find. The question asks for the difference."),
            Slip(
                block_size - (by_tokens - by_blocks),
                "You rounded up to whole blocks. A block that is only partly equal is not shared.",
            ),
        ),
    )


@exercise(title="Few-shot requests")
def few_shot_saved(rng) -> Problem:
    block_size, shared = 16, rng.choice((80, 150, 341, 700))
    requests, suffix = rng.choice((8, 16, 32)), rng.choice((15, 20, 30))
    cache_ = BlockCache(10_000, block_size)
    for number in range(requests):
        start = 10_000 * (number + 1)
        cache_.allocate(number, [*range(shared), *range(start, start + suffix)])
    answer = cache_.statistics.hit_ratio
    whole = shared // block_size * block_size
    total = requests * (shared + suffix)
    return Problem(
        f"{requests} requests start with the same {shared} tokens of examples and go on with {suffix} of"
        f" their own. With blocks of {block_size} tokens, what share of all prompt tokens is never computed?"
        " (Per cent, or a fraction.)",
        answer,
        "",
        f"{whole // block_size} whole blocks, {whole} tokens, are shared. {requests - 1} requests save them:"
        f" {requests - 1} × {whole} of {total:,} tokens, {answer:.1%}.",
        tolerance=0.007,
        slips=(
            Slip(
                requests * whole / total,
                "The first request finds nothing. Somebody has to compute the examples.",
            ),
            Slip(
                (requests - 1) * shared / total,
                "You shared single tokens. The remainder that fills no block is computed by everybody.",
            ),
            Slip(1 - answer, "That is the share that is computed."),
        ),
    )


@exercise(title="How much room is that?")
def room_in_bytes(rng) -> Problem:
    model = get_model(rng.choice(MODELS_ASKED))
    blocks, block_size = rng.choice((1_000, 10_000, 50_000)), 512
    answer = blocks * model.shape.kv_bytes(block_size) / TB
    per_token = model.shape.kv_bytes_per_token()
    return Problem(
        f"{spoken(model.name)} keeps {per_token:,} bytes of KV per token. How many terabytes (1 TB = 1e12"
        f" bytes) do {blocks:,} blocks of {block_size} tokens take?",
        answer,
        "TB",
        f"{blocks:,} × {block_size} × {per_token:,} bytes = {answer:.3g} TB.",
        tolerance=0.01,
        slips=(
            Slip(answer * TB / 2**40, "That is the number of TiB, of 2⁴⁰ bytes."),
            Slip(answer * 1000, "That is the number of GB."),
            Slip(answer / block_size, "You took one token per block."),
        ),
    )


@cache
def _small_trace(seed: int):
    """A short conversation trace and its LRU facts; many draws and judgments need the same one."""
    trace = conversation_like(TRACE_REQUESTS, seed)
    return trace, lru_knee(trace, WITHIN), replay(trace).hit_ratio


@exercise(title="Find a setting: the knee")
def find_the_knee(rng) -> Search:
    seed = rng.randrange(4)
    trace, knee, limit = _small_trace(seed)
    controls = (Range("capacity", "Room in the cache", 10, 10_000, 40, default=100, unit="blocks", log=True),)
    fitting = [size for size in controls[0].positions if size >= knee]

    def judge(capacity) -> Verdict:
        (ratio,) = lru_hit_ratios(trace, [capacity])
        said = f"{capacity:,} blocks hit {ratio:.3f}; a cache without end hits {limit:.3f}."
        if limit - ratio > WITHIN:
            return Verdict(False, f"{said} That is more than {100 * WITHIN:g} points below.")
        if capacity > fitting[0]:
            return Verdict(False, f"{said} Good enough, but a smaller cache is too.")
        terabytes = capacity * get_model("llama-3-8b").shape.kv_bytes(trace.block_size) / TB
        return Verdict(True, f"{said} For Llama-3-8B that is {terabytes:.2f} TB.")

    return Search(
        f"Conversation trace number {seed + 1}, {TRACE_REQUESTS} requests, served with LRU: find the smallest"
        f" cache on the slider whose hit ratio is at most {100 * WITHIN:.0f} points below that of a cache"
        " without end.",
        controls,
        judge,
        {"capacity": fitting[0]},
        f"One pass over the trace gives every capacity at once: the knee lies at {knee:,} blocks, so the"
        f" first slider position that suffices is {fitting[0]:,}.",
    )
