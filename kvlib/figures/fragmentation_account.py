"""Chapter 2, the account: where the slots of one A100 are, by policy and over time, and who runs at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from kvlib.errors import ConfigError
from kvlib.explore import SIMULATED, Choice, File, Option, Prediction, Range, View, explorer
from kvlib.explore.files import file_stamp
from kvlib.explore.palette import FREE, POLICY
from kvlib.explore.words import as_many, counted
from kvlib.figures.charts import axis, stacked_bars
from kvlib.figures.fragmentation import KIND_COLOURS, percent, stacked_areas
from kvlib.serving import KINDS, ServingResult, simulate
from kvlib.specs import get_gpu, get_model, kv_slots
from kvlib.workloads import Request, alpaca_like, busiest_window, read_trace, sharegpt_like

POLICIES = {"max": "Max", "pow2": "Pow2", "oracle": "Oracle", "paged": "Paged"}
NUM_SLOTS = kv_slots(get_model("opt-13b"), get_gpu("a100-40gb"))
# Table 1 of the paper gives the cache 12 GB at 800 KB per token; both are binary units.
PAPER_SLOTS = 12 * 2**30 // get_model("opt-13b").shape.kv_bytes_per_token()
FIGURE_2 = {"max": 20.4, "pow2": 26.8, "oracle": 38.2, "paged": 96.3}
# Few enough for a slider; the notebook runs 1,500.
NUM_REQUESTS = 100
SEED = 0
WINDOW_S = 60
SAMPLES = 80


@dataclass(frozen=True)
class Account:
    """One run between two moments: mean shares of memory by kind, mean number running, number refused."""

    shares: dict[str, float]
    mean_running: float
    rejected: int


def account_under_load(requests, memory: str, **knobs) -> Account:
    """Serve `requests` under one memory policy and account for the time under load.

    Examples
    --------
    >>> held = account_under_load(sharegpt_like(60, rate=6.0, seed=1), "max")
    >>> round(held.mean_running, 9), held.shares["used"] < 0.3
    (6.0, True)
    """
    result = simulate(requests, memory=memory, **knobs)
    return account_between(result, memory, *time_under_load(result, requests))


def time_under_load(result: ServingResult, requests) -> tuple[float, float]:
    """From when half of the requests have arrived to the last arrival, or until nobody waits if later.

    Before, memory fills up, and after, it runs dry. Neither says anything about a policy.
    """
    crowded_s = max((stretch.end_s for stretch in result.timeline if stretch.num_waiting), default=0.0)
    half_s, end_s = requests[(len(requests) - 1) // 2].arrival_s, max(requests[-1].arrival_s, crowded_s)
    # A trace of a few requests may have its second half arrive at one instant.
    return (half_s if half_s < end_s else requests[0].arrival_s), end_s


def account_between(result: ServingResult, memory: str, start_s: float, end_s: float) -> Account:
    """Average the timeline of a run over the time from `start_s` to `end_s`; idle time counts as free."""
    num_slots = sum(getattr(result.timeline[0].slots, kind) for kind in KINDS)
    slot_s, running_s, busy_s = dict.fromkeys(KINDS, 0.0), 0.0, 0.0
    for stretch in result.timeline:
        inside_s = min(stretch.end_s, end_s) - max(stretch.start_s, start_s)
        if inside_s <= 0:
            continue
        slots = mean_slots(stretch, memory)
        busy_s += inside_s
        running_s += inside_s * stretch.num_running
        for kind in KINDS:
            slot_s[kind] += inside_s * slots[kind]
    total_s = end_s - start_s
    slot_s["free"] += (total_s - busy_s) * num_slots
    shares = {kind: value / (total_s * num_slots) for kind, value in slot_s.items()}
    return Account(shares, running_s / total_s, result.rejected)


def mean_slots(stretch, memory: str) -> dict[str, float]:
    """The mean memory over a stretch, from the memory of its last step.

    Everyone who runs writes a token per step, so on average half of a stretch's tokens were still missing.
    A reservation held their slots already; paging had not taken them yet.
    """
    slots = {kind: getattr(stretch.slots, kind) for kind in KINDS}
    missing = stretch.num_running * (stretch.num_steps - 1) / 2
    unwritten = "reserved" if memory != "paged" else ("external" if slots["external"] else "free")
    slots["used"] -= missing
    slots[unwritten] += missing
    return slots


def workload(trace: str, load: float, max_len: int) -> tuple[Request, ...]:
    """Requests at `load` a second: from the busiest minute of the reader's trace, else ShareGPT-like ones.

    Raises
    ------
    TraceError
        From the reader, with the line.
    ConfigError
        If the minute's requests all arrive at one instant (no stretching of time makes that a rate), or if
        none of them is short enough to be served.
    """
    requests = _scaled(trace, load) if trace else sharegpt_like(NUM_REQUESTS, load, SEED)
    shortest = min(r.num_input_tokens + r.num_output_tokens for r in requests)
    if shortest > max_len:
        raise ConfigError(
            f"max_len: got {max_len}, expected at least {shortest}, the shortest of {len(requests)} requests"
        )
    return requests


def _scaled(trace: str, load: float) -> tuple[Request, ...]:
    requests = busiest_window(_requests_of(trace, file_stamp(trace)), WINDOW_S)[:NUM_REQUESTS]
    first_s, span_s = requests[0].arrival_s, requests[-1].arrival_s - requests[0].arrival_s
    if not span_s:
        raise ConfigError(f"trace: got {counted(len(requests), 'request')} of one instant, expected two arrival times")
    stretch = (len(requests) - 1) / load / span_s
    return tuple(
        Request(round((r.arrival_s - first_s) * stretch, 6), r.num_input_tokens, r.num_output_tokens)
        for r in requests
    )


@lru_cache(maxsize=1)
def _requests_of(path: str, stamp: tuple | None) -> tuple[Request, ...]:
    # Every move of a slider asks again; the stamp, time and size, tells a new file of the same name.
    return read_trace(path).requests


def _origin(requests, trace: str, load: float) -> str:
    name = f"of {os.path.basename(trace)}, their gaps scaled to" if trace else "drawn ShareGPT-like at"
    return f"{len(requests)} requests {name} {load:g}/s, OPT-13B on one A100-40GB with {NUM_SLOTS:,} slots."


LOAD = Choice("load", "Load", [1, 2, 3, 4, 6, 8], default=6, unit="requests/s")
MAX_LEN = Choice("max_len", "Maximum length", [1024, 1536, 2048, 4096, 8192], default=2048, unit="tokens")
BLOCK_SIZE = Choice("block_size", "Block size of Paged", [8, 16, 32, 64, 128, 256], default=16, unit="tokens")
TRACE = File("trace", "Your own trace (Mooncake, Azure or BurstGPT)", accept=".jsonl,.csv,.gz")


def _predict_account() -> Prediction:
    used = account_under_load(workload("", LOAD.default, MAX_LEN.default), "oracle").shares["used"]
    fact = f"In this run {100 * used:.0f} % of the slots hold a token."
    return Prediction(
        "An oracle tells the server exactly how many tokens each request will generate, and it reserves no "
        "more than that. What share of KV memory holds tokens, averaged over time?",
        (
            Option(
                "about 95 %",
                f"Knowing the end does not help before the end: slots for later tokens stand empty. {fact}",
            ),
            Option(
                "about 70 %",
                "That would be so if only the slots for later tokens were lost. Rounding up costs as much "
                f"again. {fact}",
            ),
            Option(
                "about 40 %",
                f"{fact} The rest waits for tokens, pads a power of two, or lies between reservations.",
            ),
        ),
        answer=min(range(3), key=lambda i: abs((0.95, 0.70, 0.40)[i] - used)),
    )


@explorer(
    title="Where did the memory go?",
    controls=[LOAD, MAX_LEN, BLOCK_SIZE, TRACE],
    predict=_predict_account,
    expects={
        "load": "changes:paged_used",
        "max_len": "changes:max_used",
        "block_size": "falls:paged_used",
    },
)
def account(load, max_len, block_size, trace) -> View:
    """Four bars of one GPU, one per memory policy, split by what each slot is good for."""
    requests = workload(trace, load, max_len)
    accounts = {
        name: account_under_load(requests, name, max_len=max_len, block_size=block_size) for name in POLICIES
    }
    parts = [(kind, [100 * a.shares[kind] for a in accounts.values()], KIND_COLOURS[kind]) for kind in KINDS]
    used = {name: 100 * a.shares["used"] for name, a in accounts.items()}
    rejected = accounts["paged"].rejected
    refused = f" {rejected} longer than the maximum length are refused." if rejected else ""
    return View(
        title=f"Tokens fill {used['max']:.0f} % of memory under Max, {used['oracle']:.0f} % under Oracle, "
        f"{used['paged']:.0f} % under Paged",
        picture=stacked_bars(list(POLICIES.values()), parts, axis("share of KV slots (%)", low=0, high=100)),
        table=[["policy", *(f"{kind} %" for kind in KINDS), "running", "used %, paper"]]
        + [
            [POLICIES[name], *map(percent, a.shares.values()), round(a.mean_running, 1), FIGURE_2[name]]
            for name, a in accounts.items()
        ],
        source=f"{SIMULATED}; the last column is reported by Kwon et al. 2023, figure 2",
        note=_origin(requests, trace, load) + refused,
        numbers={f"{name}_used": value for name, value in used.items()},
    )


@explorer(
    title="Memory over time",
    controls=[Choice("policy", "Policy", tuple(POLICIES.items()), default="max"), LOAD, MAX_LEN, TRACE],
    expects={"policy": "rises:used", "load": "changes:used", "max_len": "changes:used"},
)
def over_time(policy, load, max_len, trace) -> View:
    """The same run as a film: every slot of memory by kind, from the first arrival on."""
    requests = workload(trace, load, max_len)
    result = simulate(requests, memory=policy, max_len=max_len)
    end_s = result.timeline[-1].end_s
    times = [end_s * (i + 0.5) / SAMPLES for i in range(SAMPLES)]
    slots = _slots_at(result, policy, times)
    loaded = account_between(result, policy, *time_under_load(result, requests))
    fullest = max(column["used"] for column in slots)
    return View(
        title=f"{POLICIES[policy]}: {len(requests)} requests take {end_s:,.0f} s, and tokens fill "
        f"{fullest:,.0f} slots at most",
        picture=stacked_areas(
            [round(time_s, 1) for time_s in times],
            {kind: [round(column[kind]) for column in slots] for kind in KINDS},
            axis("time (s)"),
            axis("token slots", low=0, high=NUM_SLOTS),
        ),
        table=[
            ["quantity", "value"],
            ["requests completed", result.completed],
            ["requests refused", result.rejected],
            ["seconds from first arrival to last token", round(result.duration_s, 1)],
            ["running at once, mean under load", round(loaded.mean_running, 1)],
            ["slots that hold tokens, mean under load (%)", percent(loaded.shares["used"])],
            ["preemptions", result.preemptions],
        ],
        source=SIMULATED,
        note=_origin(requests, trace, load) + " External means free while a request waits for memory.",
        numbers={"used": loaded.shares["used"], "duration_s": result.duration_s},
    )


def _slots_at(result: ServingResult, memory: str, times) -> list[dict[str, float]]:
    stretches, empty = list(result.timeline), {**dict.fromkeys(KINDS, 0), "free": NUM_SLOTS}
    sampled, position = [], 0
    for time_s in times:
        while position < len(stretches) - 1 and stretches[position].end_s <= time_s:
            position += 1
        stretch = stretches[position]
        sampled.append(mean_slots(stretch, memory) if stretch.start_s <= time_s else empty)
    return sampled


# workload name -> generator, requests/s in figure 13, requests in our run, figure 13 by policy
FIGURE_13 = {
    "ShareGPT-like": (sharegpt_like, 2.0, NUM_REQUESTS, (7.00, 9.81, 13.62, 30.42)),
    "Alpaca-like": (alpaca_like, 30.0, 200, (7.00, 43.24, 72.75, 132.44)),
}


@explorer(
    title="How many requests run at once",
    controls=[
        Choice("chat", "Workload", tuple(FIGURE_13), default="ShareGPT-like"),
        Range("factor", "Load, relative to the paper's", 0.5, 4.0, 8, default=2.0, unit="times"),
        Choice("slots", "KV slots", [NUM_SLOTS, PAPER_SLOTS], default=NUM_SLOTS),
    ],
    expects={"chat": "changes:paged", "factor": "changes:paged", "slots": "rises:max"},
)
def at_once(chat, factor, slots) -> View:
    """Mean number of running requests by policy, beside figure 13 of the paper."""
    draw, rate, num_requests, paper = FIGURE_13[chat]
    requests = draw(num_requests, rate * factor, SEED)
    running = {name: account_under_load(requests, name, num_slots=slots).mean_running for name in POLICIES}
    figure = stacked_bars(
        list(POLICIES.values()),
        [
            ("this book (solid)", list(running.values()), [POLICY[name] for name in POLICIES]),
            ("paper, figure 13 (striped)", list(paper), FREE),
        ],
        axis("requests running at once, mean"),
    )
    figure["layout"]["barmode"] = "group"
    return View(
        title=f"Paged runs {as_many(running['paged'] / running['oracle'])} at once as Oracle and "
        f"{as_many(running['paged'] / running['max'])} as Max",
        picture=figure,
        table=[["policy", "this book", "paper, figure 13"]]
        + [
            [POLICIES[name], round(value, 1), reference]
            for (name, value), reference in zip(running.items(), paper)
        ],
        source=f"{SIMULATED}; the paper's column is reported by Kwon et al. 2023, figure 13",
        note=f"{num_requests} {chat} requests at {rate * factor:g}/s. The paper measured at {rate:g}/s with "
        f"15.7K slots, which hold 7 reservations of 2,048; {NUM_SLOTS:,} slots hold 6.",
        numbers=running,
    )
