"""Chapter 5: running out of memory, with and without preemption, seen in runs small enough to draw."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from kvlib.explore import (
    COMPUTED, SIMULATED, Choice, Drawing, Option, Prediction, Range, Stepper, View, explorer,
)
from kvlib.explore.palette import LIMIT, RESERVED, TRANSFER, USED
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.preemption_drawings import ROW, draw_blocks, draw_key, draw_lanes, draw_moment, lanes, letter
from kvlib.serving import ServingResult, Step, simulate, single_steps
from kvlib.workloads import Request, alpaca_like, sharegpt_like

BLOCK_SIZE = 4
# arrival (s), prompt, output: long enough to outgrow a small memory, short enough to draw.
TOY = tuple(
    Request(*row) for row in ((0.0, 8, 22), (0.0, 6, 20), (0.0, 9, 16), (0.05, 7, 18), (0.05, 8, 14))
)
PREEMPTIVE = {"drop and recompute": 0, "swap to the host": 64}


@lru_cache(maxsize=64)
def toy_run(blocks: int, num_requests: int = len(TOY), **knobs) -> tuple[ServingResult, tuple[Step, ...]]:
    """The first requests of the toy load on ``blocks`` blocks of 4, and its single steps."""
    result = simulate(TOY[:num_requests], num_slots=blocks * BLOCK_SIZE, block_size=BLOCK_SIZE, **knobs)
    return result, tuple(single_steps(result))


# ---------------------------------------------------------------- deadlock

DEFAULT_BLOCKS = 16


def _predict_deadlock() -> Prediction:
    frozen, _ = toy_run(DEFAULT_BLOCKS, preemption=False)
    ends = "every request stops" if frozen.deadlocked else "the run ends"
    reply = f"In this run {ends} after step {frozen.num_steps}, and {frozen.in_flight} of {len(TOY)} never finish."
    return Prediction(
        f"Five requests share {DEFAULT_BLOCKS} blocks. They are admitted as soon as their prompts fit; nothing is reserved for "
        "their answers, and nobody is ever thrown out. Then the memory fills up. What happens?",
        (
            Option(
                "The youngest waits; the others finish",
                f"Waiting does not give memory back. Everybody holds blocks and needs one more. {reply}",
            ),
            Option("All of them run more slowly", f"A token without a slot cannot be written at any speed. {reply}"),
            Option("All of them stop, for ever", f"{reply} Each waits for a block that only another one could free."),
        ),
        answer=2 if frozen.deadlocked and not frozen.completed else 0,
    )


@explorer(
    title="The same overload, without and with preemption",
    controls=[
        Choice("blocks", "Memory", [12, 14, 16, 18, 20, 22, 24, 26, 28], default=DEFAULT_BLOCKS, unit="blocks"),
        Choice("num_requests", "Requests", [2, 3, 4, 5], default=5),
    ],
    predict=_predict_deadlock,
    expects={"blocks": "falls:steps_with", "num_requests": "rises:steps_with"},
)
def deadlock(blocks, num_requests) -> View:
    """Both timelines of one overload, one column per step."""
    without, frozen_steps = toy_run(blocks, num_requests, preemption=False)
    with_it, steps = toy_run(blocks, num_requests)
    horizon = max(len(steps), len(frozen_steps))
    # A deadlock lasts for ever; the chart shows as much of that as the other run takes.
    for_ever = [replace(frozen_steps[-1], doing=dict.fromkeys(range(num_requests), "stalled"))]
    rest = for_ever * (horizon - len(frozen_steps)) if without.deadlocked else []
    rows = lanes([*frozen_steps, *rest], num_requests)
    height = 2 * (28 + num_requests * ROW) + 40
    drawing = Drawing(
        height, title=_deadlock_title(without, with_it),
        description="Two charts with one row per request and one column per step: without and with preemption.",
    )
    drawing.text(0, 14, "Nobody gives way", bold=True)
    draw_lanes(drawing, rows, 24, horizon)
    if without.deadlocked:
        draw_moment(drawing, 20, 24 + num_requests * ROW, len(frozen_steps), horizon)
    middle = 34 + num_requests * ROW
    drawing.text(0, middle + 14, "The latest arrival gives way", bold=True)
    draw_lanes(drawing, lanes(steps, num_requests), middle + 24, horizon)
    draw_key(drawing, height - 18, [("prefill", 0), ("decode", 92), ("stalled", 240), ("preempted", 345)])
    return View(
        title=_deadlock_title(without, with_it),
        picture=drawing.render(),
        table=[
            ["", "nobody gives way", "latest arrival gives way"],
            ["finished", without.completed, with_it.completed],
            ["stuck for ever", without.in_flight, with_it.in_flight],
            ["steps taken", without.num_steps, with_it.num_steps],
            ["preemptions", without.preemptions, with_it.preemptions],
            ["tokens computed again", without.recomputed_tokens, with_it.recomputed_tokens],
        ],
        source=SIMULATED,
        note=(
            f"A is the oldest and E the youngest. Blocks hold {BLOCK_SIZE} tokens, every step gives each running request one token, "
            "and P is a prefill. The same engine runs both; only the rule for a full memory differs."
        ),
        numbers={
            "preemptions": with_it.preemptions, "stuck": without.in_flight,
            "steps_without": without.num_steps, "steps_with": with_it.num_steps,
        },
    )


def _deadlock_title(without: ServingResult, with_it: ServingResult) -> str:
    if without.deadlocked:
        return (
            f"Nobody gives way: all {without.in_flight} stop after step {without.num_steps}. With preemption all "
            f"{with_it.completed} finish"
        )
    if with_it.preemptions:
        return f"Here stalling is survived: somebody finishes in time. Preemption needs {with_it.num_steps} steps too"
    return "Memory is ample, and the rule for a full memory is never asked"


# ---------------------------------------------------------------- the timeline, step by step

LAST_STEP = 34
FIRST_SHOWN = 5


@explorer(
    title="Who gives way, step by step",
    controls=[
        Stepper("step", "Step", last=LAST_STEP, default=FIRST_SHOWN),
        Choice("recovery", "A request that gives way is", list(PREEMPTIVE), default="drop and recompute"),
        Choice("blocks", "Memory", [16, 18, 20, 24], default=DEFAULT_BLOCKS, unit="blocks"),
    ],
    expects={"step": "rises:tokens_out", "recovery": "changes:host_tokens_in_all", "blocks": "falls:preemptions"},
)
def timeline(step, recovery, blocks) -> View:
    """The run up to one step, with the blocks that each request holds at that moment."""
    result, steps = toy_run(blocks, cpu_slots=PREEMPTIVE[recovery])
    now = min(step, len(steps))
    shown = steps[:now]
    state = shown[-1] if shown else Step({}, {}, {})
    title = _what_happens(steps, now)
    drawing = Drawing(
        40 + len(TOY) * ROW + 130, title=title,
        description=f"One row per request up to step {now}, and below it the {blocks} blocks with their owners.",
    )
    draw_lanes(drawing, lanes(shown, len(TOY)), 4, max(len(steps), LAST_STEP))
    y = 12 + len(TOY) * ROW
    away = "swapped" if PREEMPTIVE[recovery] else "preempted"
    draw_key(drawing, y, [("prefill", 0), ("decode", 92), (away, 245), ("waiting", 365)])
    held = sum(-(-count // BLOCK_SIZE) for count in state.tokens.values())
    drawing.text(0, y + 46, f"GPU memory: {held} of {blocks} blocks held")
    draw_blocks(drawing, y + 54, state.tokens, blocks, BLOCK_SIZE)
    drawing.text(0, y + 98, "Host memory")
    draw_blocks(drawing, y + 106, state.swapped, 12, BLOCK_SIZE, fill=TRANSFER)
    again = sum(_thrown_out(steps, number) for number in range(now))
    return View(
        title=title,
        picture=drawing.render(),
        table=[
            ["request", "state", "tokens on the GPU", "tokens on the host"],
            *(
                [letter(i), _state(shown, i), state.tokens.get(i, 0), state.swapped.get(i, 0)]
                for i in range(len(TOY))
            ),
        ],
        source=SIMULATED,
        note=(
            "A victim gives up all of its blocks or none: attention reads the whole cache of a request, so half of it is of no use. "
            f"So far {again} tokens have given way. Blocks are drawn in order of their owners, not of their addresses."
        ),
        numbers={
            "tokens_out": sum(kind in FIRST_TOKEN_KINDS for one in shown for kind in one.doing.values()),
            "preemptions": result.preemptions,
            "host_tokens_in_all": result.swapped_tokens,
        },
    )


FIRST_TOKEN_KINDS = ("prefill", "decode")


def _thrown_out(steps, number: int) -> int:
    """Tokens that left GPU memory unfinished just before a step."""
    if not number:
        return 0
    before, after = steps[number - 1], steps[number]
    return sum(before.tokens[i] for i in after.doing if i in before.tokens and i not in after.tokens)


def _state(shown, index: int) -> str:
    lane = lanes(shown, len(TOY))[index]
    if not lane:
        return "waiting"
    kind, _, end = lane[-1]
    return {"preempted": "thrown out", "swapped": "on the host"}.get(kind, kind) if end == len(shown) else "done"


def _what_happens(steps, now: int) -> str:
    if not now:
        return "Before the first step all blocks are free"
    before = steps[now - 2] if now > 1 else Step({}, {}, {})
    state = steps[now - 1]
    words = []
    for index, kind in sorted(state.doing.items()):
        was = before.doing.get(index)
        if kind in ("preempted", "swapped") and was not in ("preempted", "swapped"):
            fate = "are dropped" if kind == "preempted" else "move to the host"
            words.append(f"{letter(index)} gives way, its {before.tokens[index]} tokens {fate}")
        elif kind == "prefill" and was == "preempted":
            words.append(f"{letter(index)} comes back and prefills {state.tokens[index]} tokens")
        elif kind == "decode" and was == "swapped":
            words.append(f"{letter(index)} comes back from the host")
        elif kind == "prefill":
            words.append(f"{letter(index)} starts")
    words += [f"{letter(index)} is done" for index in before.doing if index not in state.doing]
    if now == len(steps):
        words.append("the last request is done")
    return f"Step {now}: {'; '.join(words) if words else 'one token for everybody who runs'}"


# ---------------------------------------------------------------- a request larger than memory


@explorer(
    title="A request larger than the memory",
    controls=[
        Range("prompt", "Prompt of the large request", 100, 1400, 14, default=1002, unit="tokens"),
        Range("output", "Its output", 1, 201, 5, default=10, unit="tokens"),
        Choice("blocks", "Memory", [49, 64, 80, 100], default=49, unit="blocks"),
    ],
    expects={"prompt": "rises:needed", "output": "rises:needed", "blocks": "falls:rejected"},
)
def too_large(prompt, output, blocks) -> View:
    """A large request and a short one behind it, on a memory of blocks of 16."""
    result = simulate([Request(0.0, prompt, output), Request(0.01, 20, 5)], num_slots=16 * blocks)
    large, short = result.per_request
    needed = -(-(prompt + output - 1) // 16)
    fits_prompt = -(-prompt // 16) <= blocks
    width = 478 / max(needed, blocks)
    drawing = Drawing(
        104, title="Blocks needed and blocks there are",
        description=f"The large request needs {needed} blocks in the end; the memory has {blocks}.",
    )
    drawing.text(0, 14, f"needed in the end: {needed} blocks")
    drawing.box(1, 22, needed * width, 22, fill=USED)
    drawing.text(0, 66, f"memory: {blocks} blocks")
    drawing.box(1, 74, blocks * width, 22, fill="none")
    drawing.line(1 + blocks * width, 18, 1 + blocks * width, 100, width=2, color=LIMIT, dashed=True)
    title = f"{needed} blocks fit in {blocks}: both requests are served"
    if large.rejection:
        title = f"{needed} blocks never fit in {blocks}: refused on arrival, and the short request is served"
    return View(
        title=title,
        picture=drawing.render(),
        table=[
            ["request", "prompt", "output", "outcome"],
            ["large", prompt, output, large.rejection or f"done after {large.latency_s:.2f} s"],
            ["short", 20, 5, short.rejection or f"done after {short.latency_s:.2f} s"],
        ],
        source=SIMULATED,
        note=(
            "The prompt alone would fit; the answer outgrows the memory. " if fits_prompt and large.rejection else ""
        ) + "No preemption helps a request that is larger than everything there is. Unless it is refused on arrival, it waits at "
        "the head of the queue for ever, and everybody behind it too.",
        numbers={"needed": needed, "rejected": result.rejected},
    )


# ---------------------------------------------------------------- reserving what the client declares

LECTURE_RATIO = 2.5  # lecture 7, section 1, on lecture 6, section 3.5
DECLARED_WORKLOADS = {"ShareGPT-like": sharegpt_like, "Alpaca-like": alpaca_like}


def slot_time_ratio(requests, declared_share: float) -> float:
    """Slots held over slots used, both summed over the life of each request, one step per output token."""
    held = sum(
        one.num_output_tokens * (one.num_input_tokens + declared_share * one.num_output_tokens) for one in requests
    )
    used = sum(one.num_output_tokens * (one.num_input_tokens + one.num_output_tokens / 2) for one in requests)
    return held / used


@explorer(
    title="Reserving what the client declares",
    controls=[
        Range("declared", "Declared limit, in actual outputs", 1.0, 4.0, 13, default=1.75),
        Choice("workload", "Workload", list(DECLARED_WORKLOADS), default="ShareGPT-like"),
    ],
    expects={"declared": "rises:ratio", "workload": "changes:ratio"},
)
def declared_limit(declared, workload) -> View:
    """How much more a reservation holds than its request uses on average."""
    requests = DECLARED_WORKLOADS[workload](500, rate=1.0, seed=0)
    shares = [1 + quarter / 4 for quarter in range(13)]
    ratios = [slot_time_ratio(requests, share) for share in shares]
    ratio = slot_time_ratio(requests, declared)
    # Both sums are linear in the limit.
    at_lecture = 1 + (LECTURE_RATIO - ratios[0]) / (slot_time_ratio(requests, 2) - ratios[0])
    return View(
        title=f"Declaring {'just' if declared == 1 else f'{declared:g} times'} the answer reserves {ratio:.2f} times what is used",
        picture=line_chart(
            [Line("reserved over used", shares, ratios, RESERVED, markers=True)],
            axis("declared limit over actual output"),
            axis("slot-seconds reserved over used", low=0, high=max(ratios) * 1.1),
            marks=[Mark("here", declared, ratio, LIMIT)],
        ),
        table=[
            ["declared limit", "reserved over used"],
            *([f"{share:g} times the output", slot_time_ratio(requests, share)] for share in (1.0, 1.5, 2.0, 4.0)),
            [f"{at_lecture:.2f} times the output", LECTURE_RATIO],
        ],
        source=COMPUTED,
        note=(
            "Even a limit that is exactly right holds more than is used, because the answer is not there yet for most of the time. "
            f"500 {workload} requests, one step per output token."
        ),
        numbers={"ratio": ratio, "at_lecture": at_lecture},
    )
