"""Chapter 2: the self-checked exercises."""

from __future__ import annotations

from kvlib.blocks import MaxReservation, grow_by_doubling, grow_by_steps, next_power_of_two, tail_waste
from kvlib.errors import OutOfBlocks
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.explore.words import counted
from kvlib.figures.fragmentation import CHATS, final_lengths, life_of
from kvlib.figures.fragmentation_account import NUM_SLOTS, PAPER_SLOTS

SHARE = "share or %"


@exercise(title="What a buddy allocator rounds away")
def buddy_padding(rng) -> Problem:
    sizes = [rng.randrange(low, high, 20) for low, high in ((140, 500), (540, 1000), (1040, 2000))]
    blocks = [next_power_of_two(size) for size in sizes]
    wasted, total = sum(blocks) - sum(sizes), sum(blocks)
    first, second, third = (f"{size:,}" for size in sizes)
    return Problem(
        f"Three requests need {first}, {second} and {third} slots. A buddy allocator gives each a block. "
        "Which share of the slots it has given out is internal fragmentation?",
        wasted / total,
        SHARE,
        f"The blocks have {', '.join(f'{block:,}' for block in blocks)} slots, {total:,} in all. Of these "
        f"{' + '.join(f'{block - size:,}' for block, size in zip(blocks, sizes))} = {wasted:,} stay empty: "
        f"{100 * wasted / total:.1f} %.",
        tolerance=0.01,
        slips=(
            Slip(
                wasted / sum(sizes),
                "You divided by the slots that were asked for. The question asks for a share of those "
                "given out.",
            ),
            Slip(sum(sizes) / total, "That is the share that is used."),
            Slip(wasted, "That is the number of slots. The question asks for a share."),
        ),
    )


@exercise(title="Slot-seconds, not slots")
def reserved_slot_seconds(rng) -> Problem:
    prompt, output = rng.choice((60, 100, 150, 200)), rng.choice((200, 260, 300, 340))
    block = next_power_of_two(prompt + output)
    answer, run = output / 2 / block, life_of(prompt, output, "oracle")
    used, internal = (prompt + output / 2) / block, 1 - (prompt + output) / block
    return Problem(
        f"A prompt has {prompt} tokens and {output} are generated, one per step. The length is known in "
        f"advance, so a buddy allocator gives the request a block of {block} slots. Averaged over its life, "
        "which share of the block is reserved: empty now, and used later?",
        answer,
        SHARE,
        f"Generated tokens fill {output} slots at a steady pace, so on average half of them, {output // 2}, "
        f"still wait: {output // 2} ÷ {block} = {100 * answer:.1f} %. Used are {100 * used:.1f} %, internal "
        f"{100 * internal:.1f} %. A run of kvlib finds {100 * run.used:.1f}, {100 * run.reserved:.1f} and "
        f"{100 * run.internal:.1f} %: it never stores the last token.",
        tolerance=0.01,
        slips=(
            Slip(
                output / block,
                "That is so in the first step only. Slots stop being reserved as tokens arrive.",
            ),
            Slip(0, "Each of those slots is used in the end, but nobody else can have it before."),
            Slip(internal, "That is the internal part: slots that no token will ever reach."),
            Slip(used, "That is the used part."),
            Slip(
                answer + internal,
                "You added the slots that will never be used. Those are internal fragmentation.",
            ),
        ),
    )


@exercise(title="The price of moving")
def tokens_moved(rng) -> Problem:
    tokens = rng.choice((512, 1024, 2048, 4096))
    step = rng.choice((None, 64, 128, 256))
    if step is None:
        grown, first, larger = grow_by_doubling(tokens), "1 slot", "of twice the size"
        terms = "1 + 2 + 4 + … + "
    else:
        grown, first, larger = grow_by_steps(tokens, step), f"{step} slots", f"{step} slots larger"
        terms = f"{step} + {2 * step} + {3 * step} + … + "
    answer, last = grown.tokens_copied, grown.moves[-1][0]
    total = f"{terms}{last:,} = {answer:,}" if len(grown.moves) > 3 else f"{answer:,}"
    return Problem(
        f"A sequence grows one token at a time to {tokens:,} tokens in contiguous space. It starts with a "
        f"space of {first}, and every time the space is full it moves to one {larger}. How many tokens are "
        "copied in all, counting a token each time it moves?",
        answer,
        "tokens",
        f"Each move copies what is there: {total}, in {counted(len(grown.moves), 'move')}.",
        slips=(
            Slip(
                answer + tokens,
                "You moved once too often: the last space is exactly full and nothing follows.",
            ),
            Slip(last, "That is the last move. Earlier ones copied tokens too."),
            Slip(len(grown.moves), "That is the number of moves. The question asks for tokens."),
        ),
    )


@exercise(title="How many reservations fit?")
def reservations_that_fit(rng) -> Problem:
    slots = rng.choice((NUM_SLOTS, PAPER_SLOTS, 24000, 40000))
    max_len = rng.choice((700, 1200, 1500, 2048, 3000))
    memory, answer = MaxReservation(slots, max_len), 0
    try:
        while True:
            memory.reserve(answer, request=None)
            answer += 1
    except OutOfBlocks:
        block = next_power_of_two(max_len)
    return Problem(
        f"A GPU has room for {slots:,} tokens of KV. The server accepts up to {max_len:,} tokens per "
        "request and reserves that much for each, from a buddy allocator. How many requests run at once?",
        answer,
        "requests",
        f"The allocator gives blocks of {block:,} slots. {slots:,} ÷ {block:,}, rounded down, is {answer}.",
        slips=(
            Slip(slots // max_len, f"The allocator rounds {max_len:,} up to a power of two."),
            Slip(answer + 1, "A reservation fits whole or not at all, so round down."),
            Slip(slots // (2 * block), "You rounded up once too often."),
        ),
    )


@exercise(title="Find a setting: where half a block is wrong")
def half_a_block_is_wrong(rng) -> Search:
    chat, percent = rng.choice(tuple(CHATS)), rng.choice((25, 30, 40))
    lengths = final_lengths(chat, seed=rng.randrange(1, 1000))
    sizes = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

    def judge(block_size) -> Verdict:
        waste = tail_waste(lengths, block_size)
        off = waste.half_block_estimate / waste.share_of_held - 1
        shorter = sum(length < block_size for length in lengths) / len(lengths)
        return Verdict(
            abs(off) > percent / 100,
            f"Measured {100 * waste.share_of_held:.1f} %, estimated {100 * waste.half_block_estimate:.1f} "
            f"%: {100 * abs(off):.0f} % too {'high' if off > 0 else 'low'}. {100 * shorter:.0f} % of the "
            "requests are shorter than one block.",
        )

    return Search(
        f"{len(lengths):,} requests are drawn {chat}. Choose a block size of at least 16 tokens at which "
        "the estimate “half a block ÷ mean length” misses the measured share of empty slots by more than "
        f"{percent} % of that share. Then say why.",
        (Choice("block_size", "Block size", sizes, default=16, unit="tokens"),),
        judge,
        {"block_size": 1024},
        "The estimate assumes that a request may end anywhere in its last block. A request shorter than "
        "one block cannot: it leaves block size minus length. So take blocks longer than many requests; "
        "the largest here always do it.",
    )
