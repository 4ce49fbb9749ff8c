"""Chapter 15's text tables: a plan's steps, its flips, and several plans side by side."""

from __future__ import annotations

from collections.abc import Mapping

from kvlib.explore.view import table_text
from kvlib.explore.words import short
from kvlib.planner import ASSUMPTIONS, LEVERS, Plan, flips, kept_formats, sent_formats
from kvlib.planner.flips import verdicts
from kvlib.planner.formats import FULL_BITS, smallest
from kvlib.planner.lines import percent

PLACES = {"GPU memory": "GPU", "CPU memory": "CPU", "SSD": "SSD", "network pool": "pool"}


def steps_table(made: Plan) -> str:
    """The waterfall in numbers: every step with the time to the first token after it."""
    rows = [[f"chapter {s.lever.chapter}", s.lever.name, 1e3 * s.after_s, "" if s.used else "would not help"] for s in made.steps]
    return table_text([["", "step", "TTFT (ms)", ""], ["", "no cache", 1e3 * made.no_cache.ttft_s, ""], *rows])


def flips_table(made: Plan) -> str:
    """Every verdict of a plan, and where each assumption turns it."""
    names = {lever.key: lever.name for lever in LEVERS}
    rows = [
        [names.get(verdict, verdict), *(f"{short(f.factor, 2)} times" if f.factor else "–" for f in flips(made, verdict))]
        for verdict in verdicts(made.setting)
    ]
    return table_text([["verdict", *ASSUMPTIONS], *rows])


def decision_table(plans: Mapping[str, Plan]) -> str:
    """Where prompts are found, how the cache is written down, and the time to the first token, plan by plan."""
    return table_text([
        ["workload", *PLACES.values(), "in memory", "on links", "block", "no cache (ms)", "plan (ms)"],
        *(_decisions(name, made) for name, made in plans.items()),
    ])


def _decisions(name: str, made: Plan) -> list:
    hits = {tier.name: percent(tier.hit_share) for tier in made.outcome.tiers}
    limit = made.setting.max_kl
    kept = smallest(kept_formats(), limit).bits if "quantized" in made.levers else FULL_BITS
    sent = f"{smallest(sent_formats(), limit).bits:.3g} bits" if "coded" in made.levers else "as it is"
    times = [float(f"{1e3 * got.ttft_s:.3g}") for got in (made.no_cache, made.outcome)]
    return [name, *(hits.get(place, "–") for place in PLACES), f"{kept:g} bits", sent, made.block_size, *times]
