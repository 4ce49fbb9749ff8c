"""Chapter 3: the self-checked exercises."""

from __future__ import annotations

import math

from kvlib.blocks import BlockManager, tail_waste
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.explore.words import counted, short
from kvlib.figures.paging import BLOCK_SIZES, TABLE_ENTRY_BYTES, placed
from kvlib.specs import get_model
from kvlib.tensors.online_softmax import walk_blocks


@exercise(title="Which slot?")
def slot(rng) -> Problem:
    block_size = rng.choice((8, 16, 32))
    num_tokens = rng.randrange(3 * block_size + 1, 5 * block_size)
    position = rng.randrange(block_size, num_tokens)
    manager = placed(rng.randrange(1, 99), 16, block_size)
    manager.allocate("seq", num_tokens)
    table = manager.block_table("seq")
    logical, offset = divmod(position, block_size)
    answer = table[logical] * block_size + offset
    return Problem(
        f"The block size is {block_size} and a sequence has the block table {table}. Positions count from 0. In which slot lies the "
        f"token at position {position}? Slots count through all physical blocks: block 0 has the first {block_size}.",
        answer,
        "",
        f"{position} ÷ {block_size} is {logical}, remainder {offset}. Logical block {logical} is physical block {table[logical]}, and "
        f"{table[logical]} × {block_size} + {offset} = {answer}.",
        slips=(
            Slip(position, "That is the position in the sequence. The block table has not been used."),
            Slip(answer - 1, "Positions count from 0: you are one slot short."),
            Slip(table[logical - 1] * block_size + offset, "You took the block before: the quotient counts from 0."),
        ),
    )


@exercise(title="The token that needs a block")
def next_block(rng) -> Problem:
    block_size, prompt = rng.choice((4, 8, 16)), rng.randrange(5, 60)
    manager = BlockManager(64, block_size)
    manager.allocate("seq", prompt)
    held = len(manager.block_table("seq"))
    extra = rng.choice((1, 2))
    generated = 0
    while len(manager.block_table("seq")) < held + extra:
        manager.append("seq")
        generated += 1
    last = (held + extra - 1) * block_size
    return Problem(
        f"A prompt of {prompt} tokens holds {counted(held, 'block')} of {block_size}. The answer grows by a token a step. "
        f"Which generated token, counting from 1, first needs block number {held + extra}?",
        generated,
        "",
        f"There is room for {last} tokens in {counted(held + extra - 1, 'block')}, so {last - prompt} generated ones fit; "
        f"number {generated} needs a new block.",
        slips=(
            Slip(generated - 1, "That one still fits: it takes the last free slot."),
            Slip(prompt + generated, "That is its position in the sequence. Count only the generated tokens."),
            Slip(extra * block_size + 1, "Free slots of the last block are used first."),
        ),
    )


@exercise(title="Two blocks, one softmax")
def two_blocks(rng) -> Problem:
    # Scores are logarithms of small whole numbers, so that the sums can be done by hand.
    counts, values = [1, rng.choice((2, 3)), rng.choice((2, 4))], [rng.randrange(1, 10) for _ in range(3)]
    values[2] = values[2] if values[2] != values[1] else values[2] + 1
    pairs = [(math.log(n), float(v)) for n, v in zip(counts, values)]
    answer = float(f"{walk_blocks([pairs[:2], pairs[2:]])[-1].answer:.10g}")
    first = walk_blocks([pairs[:2]])[0].answer
    total = sum(counts)
    return Problem(
        f"A first block holds two keys with scores 0 and ln {counts[1]} and values {values[0]} and {values[1]}. A second block holds one "
        f"key with score ln {counts[2]} and value {values[2]}. What is the attention over both blocks?",
        answer,
        "",
        f"exp(score) gives the weights {counts[0]}, {counts[1]} and {counts[2]}. The first block hands over a sum of weights of "
        f"{counts[0] + counts[1]} and a weighted sum of {counts[0] * values[0] + counts[1] * values[1]}; with the second they are {total} "
        f"and {sum(n * v for n, v in zip(counts, values))}, and the quotient is {answer:.4g}.",
        tolerance=0.002,
        slips=(
            Slip((first + values[2]) / 2, "You averaged the two blocks' answers. Each counts with its sum of weights."),
            Slip(sum(values) / 3, "You weighted all keys alike. The weights are exp(score)."),
        ),
    )


@exercise(title="A slower kernel in a whole step")
def slower_step(rng) -> Problem:
    slower, share = rng.choice((20, 22, 23, 25, 26)), rng.choice((8, 10, 15, 20, 30))
    answer = slower * share / 100
    return Problem(
        f"With paging the attention kernel takes {slower} % longer. Suppose attention is {share} % of a decode step. By how many percent "
        "does the step get longer?",
        answer,
        "%",
        f"{share} % of the step grows by {slower} %, and nothing else changes: {slower} × {share} ÷ 100 = {answer:g} %. A batch that is "
        f"larger by as much pays it back.",
        tolerance=0.001,
        slips=(
            Slip(answer / 100, "That is the share. The question asks for percent."),
            Slip(slower, "That is what attention alone loses. The linear layers do not look at block tables."),
        ),
    )


@exercise(title="Find a block size for a load")
def find_block_size(rng) -> Search:
    shape = get_model("llama-3-8b").shape
    mean = rng.choice((80, 500, 2000))
    waste_limit, entries_limit = {80: (15, 12), 500: (4, 40), 2000: (2, 70)}[mean]
    lengths = [rng.randrange(mean // 2, mean + mean // 2) for _ in range(200)]

    def measured(block_size: int) -> tuple[float, float]:
        waste = tail_waste(lengths, block_size)
        return 100 * waste.share_of_held, waste.held_slots / block_size / len(lengths)

    def judge(block_size: int) -> Verdict:
        waste, entries = measured(block_size)
        reply = (
            f"Blocks of {block_size}: the last block wastes {waste:.2g} % of what is held, "
            f"and the mean length of a table is {short(entries)} ("
            f"{short(entries * TABLE_ENTRY_BYTES)} bytes beside {mean * shape.kv_bytes_per_token() / 1e6:.3g} MB of KV)."
        )
        return Verdict(waste <= waste_limit and entries <= entries_limit, reply)

    known = [size for size in BLOCK_SIZES if judge(size).right]
    return Search(
        f"200 requests have between {mean // 2:,} and {mean + mean // 2 - 1:,} tokens. Find a block size that wastes at most {waste_limit} % of the "
        f"held slots and needs at most {entries_limit} table entries for a request on average. kvlib counts both.",
        (Choice("block_size", "Block size", BLOCK_SIZES, default=1, unit="tokens"),),
        judge,
        known={"block_size": known[0]},
        solution=f"Half a block of {mean:,} tokens bounds the waste from one side, tokens ÷ entries the block size from the other. "
        f"It works for {', '.join(map(str, known))}.",
    )
