"""From each line of a plan to the explorer that explains it, with the same numbers as far as its controls go."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvlib.explore import REGISTRY
from kvlib.explore.controls import Choice, Range, Toggle, spell
from kvlib.explore.link import state_link
from kvlib.planner import Line, Plan, lines
from kvlib.planner.lines import longest_prefill, tier_of, typical_context
from kvlib.planner.rates import kv_format

GB = 1e9
# The page of each chapter, as seen from any page one folder below the root.
PAGES = {
    1: "01_kv_cache", 7: "07_prefix_caching", 8: "08_load_or_recompute", 9: "09_strata", 10: "10_disaggregation",
    11: "11_mooncake", 12: "12_overload", 13: "13_smaller_kv", 14: "14_cachegen",
}


@dataclass(frozen=True)
class Link:
    """Where a line leads.

    Attributes
    ----------
    line : Line
    explorer_id : str
    params : dict
        Position of every control that differs from its default.
    rounded : tuple of str
        What the explorer cannot show exactly, in words: "context 16,000 for your 13,256 tokens".
    """

    line: Line
    explorer_id: str
    params: dict
    rounded: tuple[str, ...]

    @property
    def href(self) -> str:
        """The address, in the form that *Link to this state* copies."""
        return f"../notebooks/{PAGES[self.line.chapter]}.html{state_link(self.explorer_id, **self.params)}"


def links(made: Plan, workload: str | None) -> list[Link]:
    """One link per line. `workload` is the preset's name, None for a reader's own trace."""
    return [_link(line, *_TARGETS[line.topic](made, workload)) for line in lines(made)]


# For every topic the explorer, and the values it should show. None stands for what has no control there.

def _memory(made: Plan, workload) -> tuple[str, dict]:
    demand = made.setting.demand
    context = round(demand.input_tokens + demand.output_tokens)
    return "kv_cache.wall", {**_machine(made), "context": context, "num_gpus": made.setting.num_gpus, "kv_dtype": _dtype(made)}


def _block(made: Plan, workload) -> tuple[str, dict]:
    same = {"chat": "short chat", "documents": "long documents"}.get(workload)
    wanted = {"page_tokens": made.block_size, "gpu_assisted": "copies" in made.levers, "workload_name": same}
    return "strata.dilemma", {**wanted, "link": _bus(made), "model": made.setting.model.name}


def _gpu(made: Plan, workload) -> tuple[str, dict]:
    # All tiers together decide the hit ratio, whichever of them finds a block; chapter 7's blocks have 512 tokens.
    blocks = sum(tier.tokens for tier in made.outcome.tiers) // 512
    return "prefix_caching.policies", {"capacity": blocks, "workload": workload}


def _host(made: Plan, workload) -> tuple[str, dict]:
    wanted = {"your_link": tier_of(made, "host").bytes_per_s / GB, "context": typical_context(made), "kv_dtype": _dtype(made)}
    return "load_or_recompute.every_place", {**_machine(made), **wanted}


def _ssd(made: Plan, workload) -> tuple[str, dict]:
    return "mooncake_pool.tiers", {"ssd_gb_per_s": tier_of(made, "ssd").bytes_per_s / GB}


def _network(made: Plan, workload) -> tuple[str, dict]:
    gigabits = made.setting.store("network").link.bytes_per_s * 8 / 1e9
    return "mooncake.routing", {"link": gigabits, "load": made.setting.load_per_s}


def _copies(made: Plan, workload) -> tuple[str, dict]:
    new = _new_tokens(made)
    wanted = {"page_tokens": made.block_size, "new_tokens": new, "ratio": typical_context(made) / new, "link": _bus(made)}
    return "strata_scheduling.stall", {**_machine(made), **wanted}


def _overlap(made: Plan, workload) -> tuple[str, dict]:
    rates = [tier.bytes_per_s for tier in made.outcome.tiers if tier.bytes_per_s]
    wanted = {"new_tokens": _new_tokens(made), "link": max(rates) / GB if rates else None}
    return "load_or_recompute_overlap.hiding", {**_machine(made), **wanted}


def _kept(made: Plan, workload) -> tuple[str, dict]:
    return "smaller_kv_bits.key_value_bits", {}


def _sent(made: Plan, workload) -> tuple[str, dict]:
    return "cachegen_codec.rate_quality", {"allowed": made.setting.max_kl}


def _queue(made: Plan, workload) -> tuple[str, dict]:
    return "overload.controller", {}


def _decode(made: Plan, workload) -> tuple[str, dict]:
    wanted = {"prompt_tokens": longest_prefill(made), "mode": "chunked", "users": made.outcome.running}
    return "disaggregation.comb", wanted


_TARGETS = {
    "memory": _memory, "block": _block, "gpu": _gpu, "host": _host, "ssd": _ssd, "network": _network, "copies": _copies,
    "overlap": _overlap, "kept": _kept, "sent": _sent, "queue": _queue, "decode": _decode,
}


def _machine(made: Plan) -> dict:
    return {"model": made.setting.model.name, "gpu": made.setting.gpu.name}


def _bus(made: Plan) -> str | None:
    host = made.setting.store("host")
    return host.link.name if host else None


def _dtype(made: Plan) -> str:
    """The KV format as chapters 1 and 8 call it: "INT8, one scale" is their int8."""
    return kv_format(made.setting, made.levers).name.partition(",")[0].lower()


def _new_tokens(made: Plan) -> int:
    return max(1, round(made.setting.demand.input_tokens * (1 - made.outcome.hit_ratio)))


def _link(line: Line, explorer_id: str, wanted: dict) -> Link:
    controls = {control.name: control for control in REGISTRY[explorer_id].controls}
    params, rounded = {}, []
    for name, value in wanted.items():
        control = controls[name]
        position = nearest(control, value)
        if position != control.default:
            params[name] = position
        if not _same(position, value):
            rounded.append(_in_words(control, position, value))
    return Link(line, explorer_id, params, tuple(rounded))


def nearest(control: Choice | Range | Toggle, value):
    """The position of a control that comes closest: by ratio for numbers, the default for an unknown word.

    >>> from kvlib.explore import Choice
    >>> nearest(Choice("n", "N", [1, 10, 100], default=10), 40), nearest(Choice("w", "W", ["a", "b"], default="b"), "c")
    (100, 'b')
    """
    if value in control.positions:
        return value
    numbers = [p for p in control.positions if isinstance(p, (int, float)) and not isinstance(p, bool) and p > 0]
    if not numbers or not isinstance(value, (int, float)) or value <= 0:
        return control.default
    return min(numbers, key=lambda position: abs(math.log(position / value)))


def _same(position, value) -> bool:
    if isinstance(value, (int, float)) and isinstance(position, (int, float)):
        return math.isclose(position, value, rel_tol=0.02)
    return position == value


def _in_words(control: Choice | Range | Toggle, position, value) -> str:
    label = control.label if control.label[:2].isupper() else control.label[0].lower() + control.label[1:]
    if not isinstance(position, (int, float)) or not isinstance(value, (int, float)):
        return f"{label}: {control.text(position)}"
    return f"{label} {spell(position)} for your {spell(float(f'{value:.3g}'), control.unit)}"
