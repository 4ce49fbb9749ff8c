"""Chapter 15: the plan for one reader, what each lever is worth, and what would change the verdict."""

from __future__ import annotations

from kvlib.errors import ConfigError
from kvlib.explore import COMPUTED, Choice, Option, Prediction, View, explorer
from kvlib.explore.palette import FREE, LIMIT, SERIES, USED
from kvlib.explore.words import counted, short
from kvlib.figures.charts import axis, line_chart, stacked_bars
from kvlib.figures.load_or_recompute import time_words
from kvlib.figures.plan_drawings import card
from kvlib.figures.plan_inputs import CONTROLS, controls, plan_of, setting_of
from kvlib.figures.plan_links import links
from kvlib.planner import ASSUMPTIONS, LEVERS, Flip, Plan, Step, flips, plan
from kvlib.planner.flips import MEMORY, MOST, PREFILL, verdicts
from kvlib.planner.formats import kept_formats, sent_formats, smallest
from kvlib.planner.lines import tier_of
from kvlib.planner.setting import STORE_NAMES
from kvlib.specs.names import spoken

GB = 1e9
TICKS = {1 / 16: "÷16", 1 / 4: "÷4", 1: "1", 4: "×4", 16: "×16"}
LIMITS = (
    "Means over the workload, on formulas of this book that were not fitted to your machine; decoding a "
    "bitstream and writing to a tier are free here."
)
DEFAULTS = {control.name: control.default for control in CONTROLS}


def _ttft_with(**changed) -> float:
    return plan(setting_of(**{**DEFAULTS, **changed})).outcome.ttft_s


def _predict_network() -> Prediction:
    slow, fast = (_ttft_with(workload="chat", network=speed) for speed in (10, 100))
    documents = [_ttft_with(workload="documents", network=speed, host_gb=0, ssd_tb=0) for speed in (10, 100)]
    ratio = slow / fast
    fact = (
        f"The plan for short chats goes from {time_words(slow)} to {time_words(fast)}. For long documents on a machine "
        f"without CPU memory or SSD to spare it goes from {time_words(documents[0])} to {time_words(documents[1])}."
    )
    return Prediction(
        "Short chats with Llama-3-8B on an H100. You upgrade the network to the shared pool from 10 to 100 Gb/s. The "
        "time to the first token improves …",
        (
            Option("10 times", f"It would if every prompt came over that network. {fact}"),
            Option("2 times", f"Half of the work would have to lie in the pool. {fact}"),
            Option("hardly", f"What short chats reuse is already closer by. {fact}"),
        ),
        answer=min(range(3), key=lambda i: abs((10, 2, 1)[i] - ratio)),
    )


def _row(step: Step) -> str:
    return f"{step.lever.chapter} · {step.lever.name}"


def _waterfall(made: Plan) -> dict:
    """Bars from "no cache" to "your plan", and behind them, in gray, what would not help."""
    first, last = made.no_cache.ttft_s, made.outcome.ttft_s
    bars = [("no cache", 0.0, first, "total"), *(_bar(step) for step in made.steps if step.used)]
    bars += [("your plan", 0.0, last, "total"), *(_bar(step) for step in made.steps if not step.used)]
    parts = [("hidden", [1e3 * low for _, low, _, _ in bars], "rgba(0,0,0,0)")]
    for kind, words, color in (
        ("total", "TTFT", USED), ("saved", "saved", SERIES[2]), ("added", "added", LIMIT),
        ("idle", "would not help", FREE),
    ):
        parts.append((words, [1e3 * (high - low) if is_kind == kind else 0 for _, low, high, is_kind in bars], color))
    highest = 1e3 * max(high for _, _, high, _ in bars)
    value_axis = axis("mean TTFT (ms)", low=0, high=1.4 * highest)
    figure = stacked_bars([name for name, *_ in bars], parts, value_axis)
    figure["data"][0] |= {"showlegend": False, "hoverinfo": "skip"}
    figure["data"].append({
        "type": "scatter", "mode": "text", "showlegend": False, "hoverinfo": "skip", "textposition": "middle right",
        "x": [1e3 * high for _, _, high, _ in bars], "y": [name for name, *_ in bars], "text": _amounts(made),
    })
    figure["layout"]["height"] = 120 + 30 * len(bars)
    return figure


def _bar(step: Step) -> tuple[str, float, float, str]:
    low, high = sorted((step.before_s, step.after_s))
    kind = "idle" if not step.used else "saved" if step.after_s <= step.before_s else "added"
    return _row(step), low, high, kind


def _amounts(made: Plan) -> list[str]:
    def change(step: Step) -> str:
        ms = 1e3 * (step.after_s - step.before_s)
        return f" {'−' if ms < 0 else '+'}{short(abs(ms), 3)}" if abs(ms) >= 0.05 else " ±0"

    used, idle = ([change(step) for step in made.steps if step.used is flag] for flag in (True, False))
    return [f" {short(1e3 * made.no_cache.ttft_s)}", *used, f" {short(1e3 * made.outcome.ttft_s)}", *idle]


def _whose(made: Plan, trace: str) -> str:
    return "your trace" if trace else made.setting.demand.name


def _wait_words(made: Plan) -> str:
    got = made.outcome
    if got.wait_s is None:
        return "overload: no finite wait"
    return f"{float(f'{1e3 * got.wait_s:.3g}'):,.10g}"


@explorer(
    title="From no cache to your plan",
    controls=controls("network"),
    predict=_predict_network,
    expects={
        "network": "rises:network_gb_per_s", "workload": "changes:plan_ms", "gpu": "changes:plan_ms",
        "model": "changes:plan_ms", "load": "changes:busy",
    },
)
def waterfall(
    network, workload, trace, load, model, config, gpu, num_gpus, host_gb, bus, copy_kernel, ssd_tb, ssd, pool_tb, max_kl
) -> View:
    """What every lever is worth, in the order of the chapters; gray is what would not help this reader."""
    made = plan_of(**locals())
    got, steps = made.outcome, made.steps
    idle = [step for step in steps if not step.used]
    stores = [store.kind for store in made.setting.stores]
    rates = {kind: tier_of(made, kind).bytes_per_s / GB for kind in stores}
    whose = _whose(made, trace)
    return View(
        title=f"{whose[0].upper()}{whose[1:]}: first token after {time_words(got.ttft_s)} instead of "
        f"{time_words(made.no_cache.ttft_s)}; {len(idle)} of {counted(len(steps), 'step')} would not help",
        picture=_waterfall(made),
        table=[["step", "chapter", "part of the plan", "TTFT after it (ms)"]]
        + [["no cache", "1", "–", 1e3 * made.no_cache.ttft_s]]
        + [[s.lever.name, str(s.lever.chapter), "yes" if s.used else "no", 1e3 * s.after_s] for s in steps]
        + [["wait for other prefills", "12", "–", _wait_words(made)]]
        + [
            ["in memory on offer (bits)", "13", "–", f"{smallest(kept_formats(), max_kl).bits:g}"],
            ["on links on offer (bits)", "14", "–", f"{smallest(sent_formats(), max_kl).bits:.3g}"],
        ]
        + [[f"{STORE_NAMES[kind]} delivers (GB/s)", "9", "–", f"{rates[kind]:.3g}"] for kind in stores],
        source=COMPUTED,
        note=f"{spoken(made.setting.model.name)}, {counted(num_gpus, 'GPU')}, blocks of {made.block_size}. {LIMITS}",
        numbers={
            "plan_ms": 1e3 * got.ttft_s, "no_cache_ms": 1e3 * made.no_cache.ttft_s, "hit_ratio": got.hit_ratio,
            "busy": got.busy, "network_gb_per_s": rates.get("network", 0.0),
        },
    )


@explorer(
    title="The plan, line by line",
    controls=controls("workload", "documents"),
    expects={
        "workload": "changes:hit_ratio", "host_gb": "rises:hit_ratio", "load": "changes:busy", "gpu": "changes:held",
        "num_gpus": "rises:held",
    },
)
def monday(
    workload, trace, load, model, config, gpu, num_gpus, host_gb, bus, copy_kernel, ssd_tb, ssd, pool_tb, network, max_kl
) -> View:
    """Every decision with its reason, and a link into the chapter that explains it."""
    made = plan_of(**locals())
    found, got = links(made, None if trace else workload), made.outcome
    whose = _whose(made, trace)
    title = (
        f"{whose[0].upper()}{whose[1:]}, {spoken(made.setting.model.name)}: {got.hit_ratio:.0%} of the prompt tokens are reused, "
        f"{counted(got.held, 'request')} fit, and the first token comes after {time_words(got.ttft_s)}"
    )
    return View(
        title=title,
        picture=card(found, title),
        table=[["decision", "because", "chapter"]]
        + [[link.line.choice, link.line.because, str(link.line.chapter)] for link in found],
        source=COMPUTED,
        note="Each heading opens the chapter's explorer with the same numbers. Where a slider has no such position, the "
        "nearest one is taken; a line that begins with In that chapter says which.",
        numbers={"hit_ratio": got.hit_ratio, "busy": got.busy, "held": got.held, "lines": len(found)},
    )


VERDICTS = (
    *((lever.key, f"{lever.name}: worth it or not") for lever in LEVERS), (MEMORY, "memory holds the load"),
    (PREFILL, "prefill keeps up"),
)


@explorer(
    title="What would change the verdict?",
    controls=[Choice("verdict", "Verdict", VERDICTS, default="ssd"), *controls("workload", "documents")],
    expects={"verdict": "changes:nearest", "workload": "changes:nearest"},
)
def sensitivity(
    verdict, workload, trace, load, model, config, gpu, num_gpus, host_gb, bus, copy_kernel, ssd_tb, ssd, pool_tb, network,
    max_kl,
) -> View:
    """How far each assumption may be off before one verdict of the plan turns."""
    knobs = {name: value for name, value in locals().items() if name != "verdict"}
    made = plan_of(**knobs)
    if verdict not in verdicts(made.setting):
        raise ConfigError("verdict: this machine has no place for it; give the SSD, the pool or CPU memory some room, or pick another")
    found = flips(made, verdict)
    reached = [flip for flip in found if flip.factor]
    nearest = min(reached, key=lambda flip: max(flip.factor, 1 / flip.factor), default=None)
    figure = _tornado(found)
    today = _verdict_words(made, verdict)
    turned = (
        f"nothing within a factor of {MOST} would change that" if nearest is None
        else f"that turns at {short(nearest.factor, 2)} times the {nearest.assumption}"
    )
    return View(
        title=f"{today[0].upper()}{today[1:]}; {turned}",
        picture=figure,
        table=[["assumption or place", "turns at, or has today"]]
        + [[f.assumption, f"{short(f.factor, 3)} times" if f.factor else f"not within {MOST} times"] for f in found]
        + [[store.name, _room_words(made, store.kind)] for store in made.setting.stores],
        source=COMPUTED,
        note="One assumption is changed at a time, found by bisection; the other levers stay as planned. A diamond marks "
        "where the verdict turns, a gray bar an assumption that may be off by any factor shown.",
        numbers={"nearest": nearest.factor if nearest else 0.0, **{f.assumption: f.factor or 0.0 for f in found}},
    )


def _tornado(found: list[Flip]) -> dict:
    """One bar an assumption: from today's value to the factor at which the verdict turns."""
    factors = axis("the assumption, times …", log=True, low=1 / MOST / 1.3, high=MOST * 1.3)
    factors |= {"tickvals": list(TICKS), "ticktext": list(TICKS.values())}
    names = axis("", categories=list(ASSUMPTIONS)[::-1])
    figure = line_chart([], factors, names, walls=[(1, "today", FREE)])
    for flip in found:
        ends, sizes = ([1 / MOST, MOST], [0, 0]) if flip.factor is None else ([1.0, flip.factor], [0, 13])
        figure["data"].append({
            "type": "scatter", "mode": "lines+markers", "x": ends, "y": [flip.assumption] * 2, "showlegend": False,
            "name": flip.assumption, "line": {"color": USED if flip.factor else FREE, "width": 6},
            "marker": {"size": sizes, "color": LIMIT, "symbol": "diamond"},
        })
    return figure


def _room_words(made: Plan, kind: str) -> str:
    tier = tier_of(made, kind)
    return f"{float(f'{tier.tokens / 1e6:.3g}'):,.10g} million tokens at {tier.bytes_per_s / GB:.3g} GB/s"


def _verdict_words(made: Plan, verdict: str) -> str:
    if verdict == MEMORY:
        return "memory holds the load" if made.outcome.fits else "memory does not hold the load"
    if verdict == PREFILL:
        return "prefill keeps up" if made.outcome.busy < 1 else "prefill does not keep up"
    name = next(lever.name for lever in LEVERS if lever.key == verdict)
    return f"{name} {'is' if verdict in made.levers else 'is not'} worth it"


