"""Chapter 5: the self-checked exercises."""

from __future__ import annotations

from itertools import takewhile

from kvlib.cost import recompute_s
from kvlib.explore import Problem, Range, Search, Slip, Verdict, exercise
from kvlib.figures.preemption_pressure import BLOCK_SIZE, NUM_REQUESTS, input_tokens, small_run
from kvlib.figures.preemption_swap import GPU, OVERHEAD_S, link_of, round_trip_s
from kvlib.serving import simulate
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request


@exercise(title="When does it stall?")
def stall(rng) -> Problem:
    block_size, count = rng.choice((4, 8)), rng.choice((2, 3))
    prompt = block_size * rng.choice((1, 2))
    blocks = count * (prompt // block_size + rng.choice((1, 2, 3)))
    room = blocks // count * block_size
    requests = [Request(0.0, prompt, room - prompt + block_size)] * count
    settings = {"num_slots": blocks * block_size, "block_size": block_size}
    run = simulate(requests, preemption=False, **settings)
    answer = run.num_steps - 1  # the first step is the prefill
    return Problem(
        f"{blocks} blocks of {block_size} tokens. {count} prompts of {prompt} tokens arrive at once and are prefilled together; each "
        f"would hold {prompt + requests[0].num_output_tokens - 1} tokens in the end. Every decode step writes one token for each. Nobody "
        "is ever thrown out. How many decode steps can be taken?",
        answer,
        "decode steps",
        f"Each of the {count} requests gets {blocks} ÷ {count} = {blocks // count} blocks, which hold {room} tokens; {prompt} are there "
        f"after the prefill, so {room} − {prompt} = {answer} decode steps fit. The next one needs a block that nobody has.",
        slips=(
            Slip(room, "You forgot that the prompts take their slots first."),
            Slip(answer + 1, "One too many: that step finds no block. (The prefill is not a decode step.)"),
            Slip(blocks * block_size - prompt, "The blocks are shared: divide them among the requests."),
        ),
    )


@exercise(title="What the victim loses")
def lost_tokens(rng) -> Problem:
    block_size = rng.choice((4, 8))
    prompt = block_size * rng.choice((1, 2))
    own = prompt // block_size + rng.choice((1, 2, 3))
    output = own * block_size - prompt + 2
    run = simulate([Request(0.0, prompt, output)] * 2, num_slots=2 * own * block_size, block_size=block_size)
    answer = run.recomputed_tokens
    return Problem(
        f"{2 * own} blocks of {block_size} tokens, two prompts of {prompt}, prefilled together; both want {output} tokens. When "
        "memory is full, the younger one gives way and is recomputed later. How many tokens of KV does it lose in all?",
        answer,
        "tokens",
        f"Both fill {own} blocks, {own * block_size} tokens each, before the next step finds nothing free. All or nothing: the younger "
        f"one loses {own * block_size}. The older one then runs to its end, so this happens {run.preemptions} time.",
        slips=(
            Slip(block_size, "One block would let the older one go on, but half a cache is of no use: a victim loses all of it."),
            Slip(own * block_size - prompt, "Its prompt is lost too."),
            Slip(2 * own * block_size, "Only the younger one gives way."),
        ),
    )


@exercise(title="The bandwidth at which swapping ties")
def tie_bandwidth(rng) -> Problem:
    model, block_size = get_model("opt-13b"), rng.choice((16, 16, 20, 24))
    num_tokens = block_size * rng.choice((48, 64))
    again = recompute_s(model, get_gpu(GPU), num_tokens)
    copies = round(round_trip_s(model, link_of(1e30), num_tokens, block_size, False) / 2 / OVERHEAD_S)
    moved = 2 * model.shape.kv_bytes(num_tokens)
    answer = moved / (again - 2 * copies * OVERHEAD_S) / 1e9
    return Problem(
        f"{num_tokens:,} tokens of OPT-13B ({model.shape.kv_bytes_per_token():,} bytes each) in blocks of {block_size}, K and V of 40 "
        f"layers copied apart, 10 µs to start a copy. Recomputing takes {1e3 * again:.2f} ms. At which bandwidth does swapping out and "
        "in take as long?",
        answer,
        "GB/s",
        f"{num_tokens // block_size} blocks × 40 layers × 2 = {copies:,} copies each way, {2e3 * copies * OVERHEAD_S:.1f} ms both ways. "
        f"That leaves {1e3 * (again - 2 * copies * OVERHEAD_S):.2f} ms for {moved / 1e9:.3f} GB: {answer:.1f} GB/s.",
        tolerance=0.01,
        slips=(
            Slip(answer / 2, "The bytes travel twice, out and in."),
            Slip(moved / again / 1e9, "You left out the time to start the copies."),
            Slip(moved / (again - copies * OVERHEAD_S) / 1e9, "Copies are started on the way out and on the way in."),
            Slip(8 * answer, "That is in gigabits."),
        ),
    )


@exercise(title="One copy per block")
def merged_copies(rng) -> Problem:
    model, rate = get_model("opt-13b"), rng.choice((20e9, 25e9, 40e9, 50e9))
    num_tokens = rng.choice((512, 1024, 2048))
    link = link_of(rate)
    answer, apart = (1e3 * round_trip_s(model, link, num_tokens, 16, merged) for merged in (True, False))
    blocks = num_tokens // 16
    moved_ms = 1e3 * model.shape.kv_bytes(num_tokens) / rate
    return Problem(
        f"The same model, {num_tokens:,} tokens in blocks of 16, a bus of {rate / 1e9:g} GB/s and 10 µs to start a copy. Now all layers "
        "of a block, K and V, lie side by side and travel in one copy. How long does swapping out and in take?",
        answer,
        "ms",
        f"{blocks} copies each way: 2 × ({blocks} × 10 µs + {moved_ms:.2f} ms) = {answer:.1f} ms, instead of {apart:.1f} ms.",
        tolerance=0.01,
        slips=(
            Slip(answer / 2, "That is one way. The request must come back, too."),
            Slip(apart, "That is with K and V of every layer apart."),
            Slip(2 * moved_ms, "Starting the copies still takes a little."),
        ),
    )


LIMIT_SHARE = 0.05
CLOSE_ENOUGH = 1.05


@exercise(title="Find a setting: just before it thrashes")
def just_before(rng) -> Search:
    blocks = rng.choice((300, 350, 400, 500))
    control = Range("rate", "Load", 0.4, 1.5, 23, default=0.4, unit="requests/s")

    def share(rate: float) -> float:
        return small_run(rate, blocks, 0.0, 0).recomputed_tokens / input_tokens()

    largest = max(takewhile(lambda rate: share(rate) < LIMIT_SHARE, control.positions))

    def judge(rate: float) -> Verdict:
        mine = share(rate)
        said = f"At {rate:g} requests/s {100 * mine:.1f} % of the prompt tokens are computed again."
        if mine >= LIMIT_SHARE:
            return Verdict(False, f"{said} That is too much.")
        if rate * CLOSE_ENOUGH < largest:
            return Verdict(False, f"{said} There is more to be had: go up.")
        return Verdict(True, f"{said} A little more load and it is over {100 * LIMIT_SHARE:.0f} %.")

    return Search(
        f"{NUM_REQUESTS} ShareGPT-like requests, OPT-13B with {blocks} blocks of {BLOCK_SIZE}, no watermark. Find the largest load at "
        f"which recomputed tokens stay under {100 * LIMIT_SHARE:.0f} % of the prompt tokens. (Within 5 % of it counts.)",
        (control,),
        judge,
        {"rate": largest},
        f"{largest:g} requests/s, where {100 * share(largest):.1f} % are computed again. The share stays at zero for long and then "
        "rises steeply: what is lost brings load of its own.",
    )
