"""Primer 2, a batch over time: static and continuous batching, what users feel, and the memory wall."""

from __future__ import annotations

import random

from kvlib.cost import decode_step_s, decode_tokens_per_s
from kvlib.explore import (
    COMPUTED, SIMULATED, Choice, Option, Prediction, Problem, Slip, Stepper, View, exercise, explorer,
)
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.explore.svg import Drawing
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.primer_batch_gantt import LEFT, ROW, draw_gantt, draw_key, draw_ruler
from kvlib.primers.batching import SCHEDULING, Request, Served, goodput_per_s, serve, time_in
from kvlib.specs import get_gpu, get_model
from kvlib.specs.capacity import requests_held

# ---------------------------------------------------------------- the six requests of this primer

DECODE_MS = 20
DEFAULT_LONGEST = 14
NAMES = ("A", "B", "C", "D", "E", "F")


def _requests(longest: int = DEFAULT_LONGEST) -> list[Request]:
    """Short and long answers mixed; B's is the one the reader can stretch."""
    arrivals, prompts, outputs = (0, 0, 0, 30, 60, 140), (40, 30, 40, 60, 40, 30), (4, longest, 3, 8, 5, 4)
    return [Request(*row) for row in zip(NAMES, arrivals, prompts, outputs)]


def _end_ms(served) -> int:
    return max(span.end_ms for one in served for span in one.spans)


# ---------------------------------------------------------------- static against continuous

LAST_FRAME = 14
# Before C is done, so that the drawing does not answer the question above it.
FIRST_FRAME = 3


def _predict_batching() -> Prediction:
    runs = {kind: serve(_requests(), slots=3, scheduling=kind) for kind in SCHEDULING}
    first_ms = {kind: run[3].ttft_ms for kind, run in runs.items()}
    reply = (
        f"Here D waits {first_ms['static']} ms for its first token with static batching and "
        f"{first_ms['continuous']} ms with continuous batching; the last request is done at "
        f"{_end_ms(runs['static'])} and {_end_ms(runs['continuous'])} ms."
    )
    _, b, c, d, *_ = runs["static"]
    moments = (c.token_ms[-1], b.token_ms[-1], d.request.arrival_ms)
    return Prediction(
        f"Three slots hold A, B and C. C needs {c.request.output_tokens} tokens, B needs "
        f"{b.request.output_tokens}, and D is waiting. With static batching, D starts …",
        (
            Option(
                "when C is done",
                f"That is continuous batching. A static batch is closed until its last member ends. {reply}",
            ),
            Option("when B is done", reply),
            Option(
                "at once, beside them",
                f"There is no slot for a fourth request's keys and values. {reply}",
            ),
        ),
        answer=moments.index(d.spans[0].start_ms),
    )


@explorer(
    title="Six requests, two ways to batch them",
    controls=[
        Stepper("frame", "Time", last=LAST_FRAME, default=FIRST_FRAME),
        Choice("slots", "Slots (requests held at once)", [2, 3, 4], default=3),
        Choice("longest", "Output of request B", [4, 8, 14, 20, 28], default=DEFAULT_LONGEST, unit="tokens"),
    ],
    predict=_predict_batching,
    expects={"frame": "rises:now_ms", "slots": "falls:static_end_ms", "longest": "rises:held_ms"},
)
def batch_steps(frame, slots, longest) -> View:
    """Both Gantt charts up to the same moment."""
    runs = {kind: serve(_requests(longest), slots=slots, scheduling=kind) for kind in SCHEDULING}
    ends = {kind: _end_ms(run) for kind, run in runs.items()}
    horizon = max(ends.values())
    now = horizon * frame // LAST_FRAME
    done = {kind: sum(one.token_ms[-1] <= now for one in run) for kind, run in runs.items()}
    tokens = {kind: sum(t <= now for one in run for t in one.token_ms) for kind, run in runs.items()}
    held = time_in(runs["static"], "held")
    return View(
        title=(
            f"After {now} ms: {done['static']} of 6 done with static batching, {done['continuous']} with "
            "continuous"
        ),
        picture=_draw_both(runs, horizon, now),
        table=[
            ["", "static", "continuous"],
            ["requests done by now", done["static"], done["continuous"]],
            ["tokens out by now", tokens["static"], tokens["continuous"]],
            ["whole run (ms)", ends["static"], ends["continuous"]],
            ["slot time held idle in the whole run (ms)", held, time_in(runs["continuous"], "held")],
            ["mean time to first token (ms)", *(_mean_ttft_ms(run) for run in runs.values())],
        ],
        source=SIMULATED,
        note=(
            f"Each green box is one token for one request ({DECODE_MS} ms a step); P is a prefill (1 ms per "
            "prompt token). A dashed line is a request that waits."
        ),
        numbers={
            "now_ms": now, "held_ms": held,
            "static_end_ms": ends["static"], "continuous_end_ms": ends["continuous"],
            "done_static": done["static"], "done_continuous": done["continuous"],
        },
    )


def _draw_both(runs, horizon, now) -> str:
    drawing = Drawing(
        366, title=f"Static and continuous batching up to {now} ms",
        description="Two Gantt charts with one row per request, A to F; time runs to the right.",
    )
    for top, kind in ((0, "static"), (172, "continuous")):
        drawing.text(0, top + 15, f"{kind.capitalize()} batching", bold=True)
        draw_gantt(drawing, runs[kind], top + 24, 478, horizon, now)
        x = LEFT + now * (478 - LEFT) / horizon
        drawing.line(x, top + 21, x, top + 24 + ROW * len(runs[kind]), width=1.6, color=LIMIT)
    draw_key(drawing, 346)
    return drawing.render()


def _mean_ttft_ms(served) -> float:
    return sum(one.ttft_ms for one in served) / len(served)


# ---------------------------------------------------------------- TTFT, TBT, TPOT, goodput

@explorer(
    title="What each user feels",
    controls=[
        Choice("ttft_slo_ms", "First token within", [60, 90, 120, 160, 200, 240], default=200, unit="ms"),
        Choice("tpot_slo_ms", "Each later token within", [20, 25, 30, 35, 45], default=35, unit="ms"),
        Choice("who", "Measure request", NAMES, default="A"),
        Choice("scheduling", "Batching", SCHEDULING, default="continuous"),
    ],
    expects={
        "ttft_slo_ms": "rises:goodput_per_s", "tpot_slo_ms": "rises:goodput_per_s", "who": "changes:ttft_ms",
        "scheduling": "changes:goodput_per_s",
    },
)
def what_users_feel(ttft_slo_ms, tpot_slo_ms, who, scheduling) -> View:
    """TTFT and TPOT of every request against two promises, and one request measured with a ruler."""
    served = serve(_requests(), slots=3, scheduling=scheduling)
    end_ms = _end_ms(served)
    measured = next(one for one in served if one.request.name == who)
    met = [one.meets(ttft_slo_ms, tpot_slo_ms) for one in served]
    goodput = goodput_per_s(served, ttft_slo_ms, tpot_slo_ms)
    throughput = 1000 * len(served) / end_ms
    return View(
        title=(
            f"Within {ttft_slo_ms} ms, then {tpot_slo_ms} ms a token: {sum(met)} of {len(served)} users got "
            f"both; goodput {goodput:.3g} of {throughput:.3g} requests/s"
        ),
        picture=_draw_feelings(served, met, measured, end_ms),
        table=[
            ["request", "TTFT (ms)", "worst TBT (ms)", "TPOT (ms)", "both promises"],
            *(
                [one.request.name, one.ttft_ms, max(one.tbt_ms), one.tpot_ms, _verdict(was_met)]
                for one, was_met in zip(served, met)
            ),
            ["goodput (requests/s)", goodput, "", "", f"{sum(met)} of {len(served)}"],
            ["throughput (requests/s)", throughput, "", "", ""],
        ],
        source=SIMULATED,
        note=_measured_words(measured),
        numbers={
            "goodput_per_s": goodput, "throughput_per_s": throughput,
            "ttft_ms": measured.ttft_ms, "tpot_ms": measured.tpot_ms,
        },
    )


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _measured_words(one: Served) -> str:
    gaps = " + ".join(str(gap) for gap in one.tbt_ms)
    return (
        f"Request {one.request.name}: TTFT = {one.token_ms[0]} - {one.request.arrival_ms} = {one.ttft_ms} "
        f"ms. Its gaps (TBT) are {gaps} ms, and their mean is the TPOT, {one.tpot_ms:.3g} ms."
    )


def _draw_feelings(served, met, measured, end_ms) -> str:
    drawing = Drawing(
        262, title="Time to first token and time per output token of six requests",
        description=f"A Gantt chart of six requests with their verdicts. {_measured_words(measured)}",
    )
    right = 330
    drawing.text(0, 15, "TTFT / TPOT in ms", bold=True)
    draw_gantt(drawing, served, 24, right, end_ms, end_ms)
    for row, (one, was_met) in enumerate(zip(served, met)):
        words = f"{one.ttft_ms} / {one.tpot_ms:.3g} {_verdict(was_met)}"
        drawing.text(right + 8, 24 + row * ROW + 15, words, bold=was_met)
    draw_ruler(drawing, measured, 170, right, end_ms)
    draw_key(drawing, 242)
    return drawing.render()


# ---------------------------------------------------------------- throughput up to the wall

GPU = "a100-40gb"
MODELS_SHOWN = ("opt-13b", "llama-3-8b", "qwen2.5-14b")
POINTS = 24


def _predict_wall() -> Prediction:
    model, gpu = get_model("opt-13b"), get_gpu(GPU)
    few, many = (decode_tokens_per_s(model, gpu, n, 512) for n in (8, 16))
    ratio = many / few
    reply = f"It becomes {ratio:.2g} times as high: one reading of the weights now serves sixteen users."
    return Prediction(
        "OPT-13B decodes for 8 users with 512 tokens of context each. You let in 8 more. Tokens per "
        "second, in all …",
        (
            Option(
                "stay the same",
                f"They would if the GPU were short of arithmetic. It mostly waits for memory. {reply}",
            ),
            Option(
                "rise by about a tenth",
                f"Each step does get longer, but only by the extra KV to read. {reply}",
            ),
            Option("nearly double", reply),
        ),
        answer=min(range(3), key=lambda i: abs((1.0, 1.1, 2.0)[i] - ratio)),
    )


@explorer(
    title="Decode throughput up to the memory wall",
    controls=[
        Choice("context", "Context per request", [128, 256, 512, 1024, 2048], default=512, unit="tokens"),
        Choice("model", "Model", MODELS_SHOWN, default="opt-13b"),
    ],
    predict=_predict_wall,
    expects={"context": "falls:held", "model": "changes:held"},
)
def decode_wall(context, model) -> View:
    """Tokens per second against requests held; the dashed part would need memory that is not there."""
    spec, gpu = get_model(model), get_gpu(GPU)
    held = requests_held(spec, gpu, context)
    inside = sorted({1, held, *(max(1, held * i // POINTS) for i in range(1, POINTS))})
    beyond = sorted({held, *(held + held * i // POINTS for i in range(1, POINTS // 2))})
    rate = {n: decode_tokens_per_s(spec, gpu, n, context) for n in {*inside, *beyond}}
    step_ms = 1000 * decode_step_s(spec, gpu, [context] * held)
    alone_ms = 1000 * decode_step_s(spec, gpu, [context])
    return View(
        title=(
            f"Memory is full at {held:,} requests and {rate[held]:,.0f} tokens/s, {rate[held] / rate[1]:.3g} "
            "times one request"
        ),
        picture=line_chart(
            [
                Line("fits in memory", inside, [rate[n] for n in inside], SERIES[0]),
                Line("does not fit", beyond, [rate[n] for n in beyond], SERIES[5], dash=1),
            ],
            axis("requests held"), axis("tokens per second, all requests"),
            marks=[Mark("memory full", held, rate[held], LIMIT)],
            walls=[(held, "memory full", LIMIT)],
        ),
        table=[
            ["requests held", "tokens/s", "one step (ms)"],
            [1, rate[1], alone_ms],
            [held, rate[held], step_ms],
        ],
        source=COMPUTED + f", for one {GPU}",
        note=(
            f"A step for one request takes {alone_ms:.3g} ms, and for {held:,} requests {step_ms:.3g} ms. "
            "The curve bends because every request also brings its own keys and values to read."
        ),
        numbers={"held": held, "tokens_per_s": rate[held], "step_ms": step_ms},
    )


# ---------------------------------------------------------------- three questions

@exercise(title="Idle slots")
def ready_1(rng: random.Random) -> Problem:
    """Slot-steps a static batch wastes, from a run."""
    outputs = [rng.randrange(3, 30) for _ in range(4)]
    requests = [Request(name, 0, 10, n) for name, n in zip(NAMES, outputs)]
    # The first token comes from the prefill, so n tokens are n - 1 decode steps, for the longest one too.
    answer = time_in(serve(requests, slots=4, scheduling="static", decode_ms=DECODE_MS), "held") // DECODE_MS
    longest = max(outputs)
    gaps = " + ".join(str(longest - n) for n in outputs)
    return Problem(
        f"A static batch holds four requests that produce {outputs[0]}, {outputs[1]}, {outputs[2]} and "
        f"{outputs[3]} tokens. A slot in which a finished request sits during one decode step is one idle "
        "slot-step. How many idle slot-steps are there before the batch ends?",
        answer, "slot-steps",
        f"All wait for the longest, {longest} tokens: {gaps} = {answer}. The prefill gives everybody's "
        "first token, so it cancels out.",
        slips=(
            Slip(
                longest - min(outputs),
                "That is the idle time of the shortest request only. Add up all four.",
            ),
            Slip(sum(outputs) - 4, "Those are the busy slot-steps. The question asks for the idle ones."),
            Slip(4 * longest - 4, "Those are all slot-steps of the batch, busy and idle."),
        ),
    )


@exercise(title="From token times to TTFT and TPOT")
def ready_2(rng: random.Random) -> Problem:
    """TPOT from a list of token times."""
    steps = [rng.choice([20, 25, 30, 60]) for _ in range(4)]
    arrival, ttft = rng.randrange(100, 400, 10), rng.randrange(80, 300, 10)
    times = [arrival + ttft]
    for step in steps:
        times.append(times[-1] + step)
    one = Served(Request("A", arrival, 10, len(times)), token_ms=times)
    shown = ", ".join(str(t) for t in times)
    total = times[-1] - arrival
    return Problem(
        f"A request arrives at {arrival} ms. Its {len(times)} tokens come out at {shown} ms. What is its "
        "TPOT?",
        one.tpot_ms, "ms",
        f"The gaps after the first token add up to {times[-1]} - {times[0]} = {times[-1] - times[0]} ms, "
        f"and there are {len(steps)} of them: {one.tpot_ms:g} ms. The TTFT, {one.ttft_ms} ms, is not in it.",
        slips=(
            Slip((times[-1] - times[0]) / len(times), "Five tokens have four gaps between them."),
            Slip(total / len(times), "That mixes the wait for the first token into the rest."),
            Slip(total / len(steps), "You measured from arrival. TPOT starts at the first token."),
            Slip(one.ttft_ms, "That is the TTFT."),
            Slip(max(steps), "That is the worst gap (TBT). TPOT is their mean."),
        ),
    )


@exercise(title="Who counts for goodput")
def ready_3(rng: random.Random) -> Problem:
    """Requests a second that met both promises."""
    seconds, count = rng.choice([2, 4, 5]), 8
    # One early, one late, so that each promise is missed by somebody; the others as they come.
    ttfts = [100, 100, 700, *(rng.choice([150, 250, 450, 600]) for _ in range(count - 3))]
    tpots = [20, 80, 20, *(rng.choice([25, 35, 45, 70]) for _ in range(count - 3))]
    pairs = list(zip(ttfts, tpots))
    rng.shuffle(pairs)
    ttft_slo, tpot_slo = 500, 50
    served = [_with_times(ttft, tpot, seconds) for ttft, tpot in pairs]
    answer = goodput_per_s(served, ttft_slo, tpot_slo)
    listed = "; ".join(f"{ttft} / {tpot}" for ttft, tpot in pairs)
    good = sum(one.meets(ttft_slo, tpot_slo) for one in served)
    first_only, rest_only = sum(t <= ttft_slo for t, _ in pairs), sum(t <= tpot_slo for _, t in pairs)
    return Problem(
        f"In {seconds} seconds {count} requests were served, with these TTFT / TPOT in ms: {listed}. "
        f"Promised were {ttft_slo} ms and {tpot_slo} ms. What is the goodput, in requests per second?",
        answer, "requests/s",
        f"{good} requests met both promises: {good} / {seconds} = {answer:g}. The throughput is "
        f"{count / seconds:g}.",
        slips=(
            Slip(
                count / seconds,
                "That is the throughput. Goodput leaves out requests that missed a promise.",
            ),
            Slip(
                first_only / seconds,
                "You checked the first token only. The later tokens were promised too.",
            ),
            Slip(rest_only / seconds, "You checked the later tokens only. The first token was promised too."),
            Slip(good, "That is the number of good requests. Divide by the time."),
        ),
    )


def _with_times(ttft: int, tpot: int, seconds: int) -> Served:
    """A request of two tokens with this TTFT and TPOT, the last one out when the run ends."""
    end = 1000 * seconds
    return Served(Request("r", end - tpot - ttft, 1, 2), token_ms=[end - tpot, end])
