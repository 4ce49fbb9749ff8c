"""Chapter 11: send the request to the cache, or the cache to the request?"""

from __future__ import annotations

import math
from functools import lru_cache

from kvlib.cluster import POLICIES, PrefillReplay, cluster_after, replay_prefill
from kvlib.errors import ConfigError
from kvlib.explore import SIMULATED, Choice, File, Option, Prediction, Stepper, Toggle, View, explorer
from kvlib.explore.files import file_stamp
from kvlib.explore.palette import FREE, LIMIT, PREFILL, TRANSFER
from kvlib.explore.words import counted
from kvlib.figures.charts import axis, stacked_bars
from kvlib.figures.mooncake_drawings import draw_columns
from kvlib.prefix import replay
from kvlib.specs import LinkSpec
from kvlib.specs.hardware import gbps
from kvlib.workloads import Trace, conversation_like, prefix_trace, read_trace

NAMES = {
    "random": "random",
    "round_robin": "round robin",
    "least_load": "least load",
    "longest_prefix": "longest prefix",
    "cache_aware": "cache-aware",
    "random_pull": "random, with pulls",
    "kvcache_centric": "KVCache-centric",
}
# Round robin differs little from random; random with pulls belongs to the explorer of the two gains.
COMPARED = ("random", "least_load", "longest_prefix", "cache_aware", "kvcache_centric")
# The session gaps of the synthetic trace are minutes, so 240 requests must be spread over a quarter of an hour
# for sessions to return; the load slider compresses the arrivals afterwards.
NUM_REQUESTS, DRAWN_AT_PER_S, SEED = 240, 0.25, 2
INSTANCES, CACHE_BLOCKS = 8, 200
BATCH = 20
LOADS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
SLO_CHOICES = ((0, "no limit"), (2, "2 s"), (5, "5 s"), (10, "10 s"), (30, "30 s"))
LINK_GBPS = (1, 3, 10, 25, 100, 200, 400, 800)
# Measured with replay_prefill's defaults on Mooncake's conversation trace, which is not shipped here; `random` is
# the mean of seeds 0 to 4. tests/unit/test_cluster_conductor_real.py measures them again where the trace is at hand.
REAL_HIT_RATIOS = {
    "random": 0.087, "least_load": 0.087, "longest_prefix": 0.065, "cache_aware": 0.253, "kvcache_centric": 0.297,
}
ON_THIS_TRACE = (
    f"Simulated on a synthetic trace of {NUM_REQUESTS} requests that resembles Mooncake's conversation "
    "trace: every "
    "prompt begins with the same block, and about one session in four returns."
)


@lru_cache(maxsize=1)
def small_trace() -> Trace:
    """The trace behind the explorers of this chapter."""
    return prefix_trace("conversation", NUM_REQUESTS, DRAWN_AT_PER_S, SEED)


@lru_cache(maxsize=512)
def run(policy: str, load: float, **knobs) -> PrefillReplay:
    """Replay the small trace at ``load`` requests/s; remembered, since explorers share most runs."""
    return replay_prefill(small_trace(), policy=policy, speed=load / DRAWN_AT_PER_S, **knobs)


def load_control(default: float = 4.0) -> Choice:
    return Choice("load", "Load", LOADS, default=default, unit="requests/s")


def cache_control() -> Choice:
    return Choice("cache_blocks", "Cache of each instance", [50, 100, 200, 400, 800], default=CACHE_BLOCKS, unit="blocks")


def link_control() -> Choice:
    return Choice("link", "Network of each instance", LINK_GBPS, default=800, unit="Gb/s")


def network(gigabits_per_s: float) -> LinkSpec:
    """A network card that delivers 80 % of its rate, as in chapter 8."""
    return LinkSpec(f"{gigabits_per_s:g} Gb/s", gbps(gigabits_per_s), overhead_s=5e-6, efficiency=0.8)


def seconds_words(seconds: float) -> str:
    """Spell a TTFT.

    >>> seconds_words(0.728), seconds_words(96.3)
    ('0.73 s', '96.3 s')
    """
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.3g} s"


def _predict_longest_prefix() -> Prediction:
    trace = conversation_like(2000, seed=0)
    knobs = {"cache_blocks": 1000}
    blind = math.fsum(replay_prefill(trace, policy="random", seed=s, **knobs).hit_ratio for s in range(5)) / 5
    longest = replay_prefill(trace, policy="longest_prefix", **knobs).hit_ratio
    fact = (
        f"On 2,000 synthetic requests the longest-prefix rule hits {longest:.1%} and random (mean of five "
        f"draws) {blind:.1%}; on "
        f"the real trace they hit {REAL_HIT_RATIOS['longest_prefix']:.1%} and "
        f"{REAL_HIT_RATIOS['random']:.1%}."
    )
    ratio = longest / blind
    return Prediction(
        "Every request goes to the instance that holds the longest part of its prompt, and nothing else "
        "counts. "
        "Compared with a random instance, the hit ratio is …",
        (
            Option(
                "about twice as high: that is the point of the rule",
                f"So it seems, until one block is in everybody's prompt. {fact}",
            ),
            Option("about the same", f"It uses far less of the memory than random does. {fact}"),
            Option(
                "lower",
                "All prompts begin with the same block. Whoever computes it first always has the longest "
                "prefix, gets every "
                f"request, and has only its own cache; the other seven stay empty. {fact}",
            ),
        ),
        answer=2 if ratio < 0.95 else (0 if ratio > 1.5 else 1),
    )


@explorer(
    title="Eight instances and one rule",
    controls=[
        Choice("policy", "Each request goes to", list(NAMES.items()), default="random"),
        Stepper("step", "Twenties of requests", last=NUM_REQUESTS // BATCH, default=NUM_REQUESTS // BATCH),
        load_control(),
        cache_control(),
    ],
    predict=_predict_longest_prefix,
    expects={"policy": "changes:busiest_share", "step": "rises:requests", "load": "rises:longest_queue_s"},
)
def columns(policy, step, load, cache_blocks) -> View:
    """Each column is an instance: its queue above the line, its cache below."""
    num_requests = step * BATCH
    cluster = cluster_after(
        small_trace(), num_requests, policy=policy, speed=load / DRAWN_AT_PER_S, cache_blocks=cache_blocks
    )
    jobs, pool = cluster.jobs, cluster.pool
    queues_s = [instance.queue_ns(cluster.now_ns) / 1e9 for instance in cluster.instances]
    counts = [instance.num_jobs for instance in cluster.instances]
    cached = [pool.num_cached(index) for index in range(INSTANCES)]
    shared = [pool.num_shared(index) for index in range(INSTANCES)]
    references = sum(len(job.request.block_ids) for job in jobs)
    hit_ratio = sum(job.reused_blocks for job in jobs) / references if jobs else 0.0
    busiest = max(counts) / max(1, sum(counts))
    return View(
        title=f"{NAMES[policy][0].upper()}{NAMES[policy][1:]}: the busiest instance got "
        f"{max(counts)} of {num_requests} requests, "
        f"{hit_ratio:.1%} of blocks were reused",
        picture=draw_columns(queues_s, counts, cached, shared, cache_blocks),
        table=[
            ["instance", "requests", "queue (s)", "blocks cached", "of which elsewhere too"],
            *([i, n, float(f"{q:.3g}"), c, s] for i, (n, q, c, s) in enumerate(zip(counts, queues_s, cached, shared))),
        ],
        source=SIMULATED,
        note=f"The rule: {POLICIES[policy].words}. A red edge marks a queue too tall to draw. {ON_THIS_TRACE}",
        numbers={
            "busiest_share": busiest, "requests": num_requests, "hit_ratio": hit_ratio, "longest_queue_s": max(queues_s),
        },
    )


@explorer(
    title="Rules against each other",
    controls=[
        load_control(),
        cache_control(),
        link_control(),
        Choice("instances", "Instances", [2, 4, 6, 8, 12], default=INSTANCES),
        Choice("threshold", "Balancing threshold", [1.0, 1.5, 2.0, 4.0, 8.0, 32.0], default=2.0),
        Choice("slo", "Refuse above an expected TTFT of", SLO_CHOICES, default=0),
        File("trace", "Your own trace (Mooncake)", accept=".jsonl,.gz"),
    ],
    expects={
        "load": "rises:random_ttft_s", "cache_blocks": "rises:kvcache_centric_hit_ratio",
        "link": "changes:kvcache_centric_ttft_s", "instances": "changes:kvcache_centric_ttft_s",
        "threshold": "changes:transferred_tokens", "slo": "changes:rejected",
    },
)
def routing(load, cache_blocks, link, instances, threshold, slo, trace) -> View:
    """Mean TTFT of every rule on the same requests, with what each hit, computed and sent."""
    knobs = {
        "cache_blocks": cache_blocks, "link": network(link), "instances": instances, "threshold": threshold,
        "ttft_slo_s": slo or None,
    }
    if trace:
        window, per_s = _dropped(trace, file_stamp(trace))
        runs = {p: replay_prefill(window, policy=p, speed=load / per_s, **knobs) for p in COMPARED}
        which = f"Your trace, its first {len(window.requests):,} requests, replayed at {load:g} requests/s."
    else:
        runs = {p: run(p, load, **knobs) for p in COMPARED}
        which = ON_THIS_TRACE
    ttft = {NAMES[p]: max(r.ttft_s, 0.01) for p, r in runs.items()}
    figure = stacked_bars(
        list(ttft), [("mean TTFT", list(ttft.values()), PREFILL)],
        axis("mean TTFT (s)", log=True, low=min(0.5, *ttft.values()), high=max(ttft.values()) * 2),
    )
    figure["layout"]["showlegend"] = False
    aware, centric = runs["cache_aware"], runs["kvcache_centric"]
    return View(
        title=f"At {load:g} requests/s: least load {seconds_words(runs['least_load'].ttft_s)}, cache-aware "
        f"{seconds_words(aware.ttft_s)}, KVCache-centric {seconds_words(centric.ttft_s)} to the first token",
        picture=figure,
        table=[
            [
                "rule", "hit ratio", "imbalance", "mean TTFT (s)", "P90 TTFT (s)", "computed (k tokens)",
                "sent (k tokens)", "refused",
            ],
            *(
                [
                    NAMES[p], r.hit_ratio, r.imbalance, r.ttft_s, r.ttft_percentile_s(90), r.computed_tokens // 1000,
                    r.transferred_tokens // 1000, r.rejected,
                ]
                for p, r in runs.items()
            ),
        ],
        source=SIMULATED,
        note=f"{which} Each instance is a node of eight A800 with a model like LLaMA-2-70B. Imbalance is the busiest "
        "instance's prefill time over the mean.",
        numbers={
            "kvcache_centric_ttft_s": centric.ttft_s, "kvcache_centric_hit_ratio": centric.hit_ratio,
            "random_ttft_s": runs["random"].ttft_s, "least_load_ttft_s": runs["least_load"].ttft_s,
            "transferred_tokens": centric.transferred_tokens,
            "rejected": runs["random"].rejected,
        },
    )


@lru_cache(maxsize=2)
def _dropped(path: str, stamp: tuple | None) -> tuple[Trace, float]:
    """The first thousand requests of a dropped trace and their rate; the stamp tells files of one name apart."""
    whole = read_trace(path, strict=False)
    requests = whole.requests[:1000]
    spread_s = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    if not spread_s:
        raise ConfigError(f"trace: got {counted(len(requests), 'request')} at one instant, expected them spread over time")
    return Trace(whole.name, whole.format, requests, whole.block_size), len(requests) / spread_s


@explorer(
    title="Two gains, and one pool",
    controls=[
        Toggle("balance", "Balance: look at the queues", default=True),
        Toggle("reach", "Reach: pull prefixes from other instances", default=True),
        Toggle("pooled", "Show one cache of the same total size", default=False),
        load_control(),
        cache_control(),
        link_control(),
    ],
    expects={
        "balance": "falls:ttft_s", "reach": "rises:hit_ratio", "pooled": "changes:bars",
        "load": "changes:ttft_s", "cache_blocks": "rises:hit_ratio", "link": "changes:ttft_s",
    },
)
def two_gains(balance, reach, pooled, load, cache_blocks, link) -> View:
    """The four combinations of balance and reach, one of them chosen, and what a single pool would hit."""
    knobs = {"cache_blocks": cache_blocks, "link": network(link)}
    chosen = run(two_switches(balance, reach), load, **knobs)
    neither = run("random", load, **knobs)
    bars = {"neither": _shares(neither)}
    if balance or reach:
        bars[" + ".join(word for word, on in (("balance", balance), ("reach", reach)) if on)] = _shares(chosen)
    one = replay(small_trace(), INSTANCES * cache_blocks).prefix_hit_ratio
    if pooled:
        bars["one pooled cache"] = (one, 0.0, 1.0 - one)
    local, pulled, computed = zip(*bars.values())
    figure = stacked_bars(
        list(bars),
        [
            ("reused, was there", [100 * v for v in local], FREE),
            ("reused, pulled", [100 * v for v in pulled], TRANSFER),
            ("computed", [100 * v for v in computed], PREFILL),
        ],
        axis("share of prompt blocks (%)", low=0, high=100),
        walls=[(100 * chosen.hit_ratio, "reused", LIMIT)],
    )
    rules = {"neither": "random", "balance": "cache_aware", "reach": "random_pull", "both": "kvcache_centric"}
    results = {words: run(policy, load, **knobs) for words, policy in rules.items()}
    return View(
        title=f"{_switch_words(balance, reach)}: {chosen.hit_ratio:.1%} of blocks reused, first token after "
        f"{seconds_words(chosen.ttft_s)} on average",
        picture=figure,
        table=[
            ["switched on", "rule", "reused (%)", "imbalance", "mean TTFT (s)"],
            *([words, NAMES[rules[words]], 100 * r.hit_ratio, r.imbalance, r.ttft_s] for words, r in results.items()),
            ["one pooled cache", "in order of arrival", 100 * one, "–", "–"],
        ],
        source=SIMULATED,
        note=f"{ON_THIS_TRACE} The pooled cache has {INSTANCES * cache_blocks:,} blocks in one LRU list that every instance "
        "reads at no cost: a yardstick, since nothing is stored twice.",
        numbers={"hit_ratio": chosen.hit_ratio, "ttft_s": chosen.ttft_s, "bars": len(bars), "pooled_hit_ratio": one},
    )


def two_switches(balance: bool, reach: bool) -> str:
    """The rule that has just these gains."""
    if balance:
        return "kvcache_centric" if reach else "cache_aware"
    return "random_pull" if reach else "random"


def _switch_words(balance: bool, reach: bool) -> str:
    if balance and reach:
        return "Balance and reach"
    return "Balance without reach" if balance else "Reach without balance" if reach else "Neither"


def _shares(result: PrefillReplay) -> tuple[float, float, float]:
    """Shares of blocks that were there, were pulled, and were computed."""
    pulled = result.transferred_tokens / small_trace().block_size / result.references
    return result.hit_ratio - pulled, pulled, 1.0 - result.hit_ratio
