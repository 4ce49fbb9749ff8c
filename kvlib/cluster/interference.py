"""One long prompt among users who are decoding: when does each step end, and who has to wait?

The time between tokens of everybody in the batch is the duration of a step. A prompt that joins makes one
step long (coupled), several steps a little longer (chunked prefill), or none (another machine does it).
"""

from dataclasses import dataclass

from kvlib.serving.clock import PS_PER_S, StepClock
from kvlib.specs import GpuSpec, ModelSpec
from kvlib.specs.checks import one_of, real, whole

MODES = ("coupled", "chunked", "disaggregated")


@dataclass(frozen=True)
class Interference:
    """Steps around the arrival of a long prompt.

    Attributes
    ----------
    token_times_s : tuple of float
        When each step ends, from 0; every decoding user gets a token then.
    prompt_tokens_in_step : tuple of int
        Prompt tokens that were computed in the step.
    first_token_s : float
        The long prompt's own first token, after its arrival.
    """

    token_times_s: tuple[float, ...]
    prompt_tokens_in_step: tuple[int, ...]
    first_token_s: float

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Time between tokens, step by step."""
        return tuple(b - a for a, b in zip((0.0, *self.token_times_s), self.token_times_s))

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps_s)


def long_prompt(
    model: ModelSpec,
    gpu: GpuSpec,
    prompt_tokens: int,
    mode: str = "coupled",
    *,
    users: int = 32,
    context_tokens: int = 500,
    chunk_tokens: int = 512,
    quiet_steps: int = 8,
) -> Interference:
    """Let a prompt of ``prompt_tokens`` arrive after ``quiet_steps`` steps of ``users`` decoding users.

    Parameters
    ----------
    prompt_tokens : int
    mode : str
        ``coupled``, ``chunked`` or ``disaggregated``.
    users, context_tokens : int
        Decoding users, and the KV that each of them holds at the start.
    chunk_tokens : int
        Prompt tokens per step, for ``chunked``.
    quiet_steps : int
        Steps before the prompt arrives and after its prefill.

    Source: Zhong et al. 2024 (DistServe), section 2.3 and figure 2.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> model, gpu = get_model("opt-13b"), get_gpu("a100-80gb")
    >>> [round(1e3 * long_prompt(model, gpu, 2048, mode).longest_gap_s) for mode in MODES]    # ms
    [302, 86, 20]
    """
    one_of("mode", mode, MODES)
    whole("quiet_steps", quiet_steps)
    whole("chunk_tokens", chunk_tokens)
    clock = StepClock(model, gpu)
    piece = chunk_tokens if mode == "chunked" else prompt_tokens
    chunks = _chunks(whole("prompt_tokens", prompt_tokens), piece)
    alone_ps = clock.step_ps(chunks)
    kv_tokens = whole("users", users) * whole("context_tokens", context_tokens)
    # Meanwhile the users get their tokens as before.
    elsewhere = [None] * -(-alone_ps // clock.step_ps((), users, kv_tokens))
    here = elsewhere if mode == "disaggregated" else chunks
    schedule = [None] * quiet_steps + here + [None] * quiet_steps
    now_ps, times, tokens, first_ps = 0, [], [], 0
    for chunk in schedule:
        kv_tokens += users
        start_ps = now_ps
        now_ps += clock.step_ps([chunk] if chunk else (), users, kv_tokens)
        times.append(now_ps / PS_PER_S)
        tokens.append(chunk[0] if chunk else 0)
        if chunk:
            first_ps += now_ps - start_ps
    return Interference(tuple(times), tuple(tokens), (first_ps or alone_ps) / PS_PER_S)


def largest_chunk(
    model: ModelSpec, gpu: GpuSpec, tbt_slo_s: float, *, users: int, context_tokens: int
) -> int:
    """Most prompt tokens in one step that keeps the time between tokens of all users within ``tbt_slo_s``.

    The chunk is the first of its prompt; later ones attend to more and need to be a little smaller. 0 if the
    decodes alone take too long.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> largest_chunk(get_model("opt-13b"), get_gpu("a100-80gb"), 0.1, users=32, context_tokens=500)
    636
    """
    limit_ps = round(real("tbt_slo_s", tbt_slo_s, above=True) * PS_PER_S)
    kv_tokens = whole("users", users) * (whole("context_tokens", context_tokens) + 1)
    clock = StepClock(model, gpu)
    low, high = 0, 2**20
    while low < high:
        middle = (low + high + 1) // 2
        fits = clock.step_ps([(middle, 0)], users, kv_tokens) <= limit_ps
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _chunks(prompt_tokens: int, chunk_tokens: int) -> list[tuple[int, int]]:
    """``(new_tokens, cached_tokens)`` of each piece."""
    starts = range(0, prompt_tokens, chunk_tokens)
    return [(min(chunk_tokens, prompt_tokens - start), start) for start in starts]
