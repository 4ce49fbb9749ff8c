"""What engineers ask, each answered by one state of an explorer and by the two inputs that move the answer most.

Names of engine options and log lines follow the public documentation and source of vLLM (0.32 and its main branch) and of
SGLang, as read in November 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvlib.errors import ConfigError
from kvlib.explore import REGISTRY
from kvlib.explore.controls import Control, spell
from kvlib.explore.link import state_link
from kvlib.figures.question_texts import TEXTS, Texts

SHOWN = 2


@dataclass(frozen=True)
class Question:
    """A question and the explorer state that answers it.

    Parameters
    ----------
    id : str
        Short name; the page's anchor.
    explorer_id, params
        The state. Controls left out stand at their defaults.
    answer : callable
        From the state's `numbers` to the one number that answers.
    unit : str
        What the number counts, as it stands behind the number in a sentence.
    held : tuple of str
        Controls that are part of the question, so they are not varied.
    """

    id: str
    explorer_id: str
    answer: Callable[[Mapping[str, float]], float]
    unit: str
    params: dict = field(default_factory=dict)
    held: tuple[str, ...] = ()

    @property
    def link(self) -> str:
        return state_link(self.explorer_id, **self.params)

    @property
    def texts(self) -> Texts:
        return TEXTS[self.id]

    @property
    def case(self) -> str:
        """The state in words: ``Block size 16 tokens, Workload ShareGPT-like``."""
        explorer = REGISTRY[self.explorer_id]
        state = {**explorer.defaults, **self.params}
        return ", ".join(f"{c.label} {c.text(state[c.name])}" for c in explorer.controls if c.positions is not None)


@dataclass(frozen=True)
class Swing:
    """How far one control moves an answer while the others stay."""

    control: Control
    low: float
    low_at: object
    high: float
    high_at: object

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def sentence(self) -> str:
        """``Context length: from 3 at 131,072 tokens to 833 at 512 tokens``."""
        at = self.control.text
        return f"{self.control.label}: from {short(self.low)} at {at(self.low_at)} to {short(self.high)} at {at(self.high_at)}"


@dataclass(frozen=True)
class Answer:
    """A question answered: the number, the explorer's finding, and the inputs that matter most."""

    question: Question
    value: float
    finding: str
    source: str
    swings: tuple[Swing, ...]

    @property
    def text(self) -> str:
        return f"{short(self.value)} {self.question.unit}"


def short(value: float) -> str:
    """Three significant digits, whole numbers whole.

    >>> short(52), short(5.5742), short(12596.0), short(0.01518)
    ('52', '5.57', '12,596', '0.0152')
    """
    return spell(round(value)) if abs(value) >= 1000 else spell(float(f"{value:.3g}"))


def answer(question: Question) -> Answer:
    """Compute the answer and rank the inputs by how far each moves it over the whole range of its control.

    Examples
    --------
    >>> found = answer(QUESTIONS["fit"])
    >>> found.text, len(found.swings)
    ('52 requests', 2)
    """
    explorer = REGISTRY[question.explorer_id]
    state = explorer.view(**question.params).to_dict()
    varied = [c for c in explorer.controls if c.positions is not None and c.name not in question.held]
    swings = [swing(question, control) for control in varied]
    ranked = sorted((s for s in swings if s.width > 0), key=lambda s: -s.width)
    return Answer(question, question.answer(state["numbers"]), state["title"], state["source"], tuple(ranked[:SHOWN]))


def swing(question: Question, control: Control) -> Swing:
    """The smallest and largest answer over the positions of `control`; positions that kvlib refuses are left out."""
    explorer = REGISTRY[question.explorer_id]
    answers = []
    for position in control.positions:
        state = explorer.state({**question.params, control.name: position})
        if "error" not in state:
            answers.append((question.answer(state["numbers"]), position))
    if not answers:
        raise ConfigError(f"{question.id}: every position of {control.name} is refused")
    low, high = min(answers, key=lambda a: a[0]), max(answers, key=lambda a: a[0])
    return Swing(control, *low, *high)


QUESTIONS = {
    question.id: question
    for question in (
        Question("fit", "kv_cache.size", lambda n: n["held"], "requests"),
        Question("tensor_parallel", "kv_cache.tensor_parallel", lambda n: n["per_gpu"] / 1024, "KiB of KV per token on each GPU"),
        Question("block_size", "fragmentation.tail", lambda n: 100 * n["share"], "% of held slots empty"),
        Question("p99", "serving_knobs.symptom", lambda n: n["p99_ttft_s"], "s of P99 TTFT"),
        Question(
            "chunk", "disaggregation.comb", lambda n: n["longest_gap_ms"], "ms between two tokens at worst",
            {"mode": "chunked"}, ("mode",),
        ),
        Question(
            "eviction", "prefix_caching.policies", lambda n: 100 * (n["lru"] - max(n["lfu"], n["lfu_kept"])),
            "points of hit ratio for LRU over the better LFU",
        ),
        Question("cache_size", "prefix_caching.savings", lambda n: n["times"], "times fewer GPU-hours of prefill"),
        Question(
            "offload", "load_or_recompute.every_place", lambda n: n["recompute_ms"] / n["your_ms"],
            "times as fast as recomputing", {"your_link": 18.0},
        ),
        Question("network", "load_or_recompute.break_even", lambda n: n["break_even_gb_per_s"], "GB/s or more"),
        Question("page_size", "strata.copy_size", lambda n: n["link_percent"], "% of the link's peak"),
        Question("nodes", "disaggregation.split", lambda n: n["best_prefill_gpus"], "of 8 GPUs for prefill"),
        Question(
            "router", "mooncake.routing", lambda n: n["least_load_ttft_s"] / n["kvcache_centric_ttft_s"],
            "times shorter mean TTFT by the cost rule than at the idle machine (least load)",
        ),
        Question(
            "bits", "smaller_kv_bits.key_value_bits", lambda n: n["kl"], "nats of KL divergence at 4 bits (5 with scales)",
            {"key_bits": 4, "value_bits": 4},
        ),
        Question("wire", "cachegen_streaming.wire", lambda n: n["recompute_s"] / n["compressed_s"], "times as fast as recomputing"),
    )
}
