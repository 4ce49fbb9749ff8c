"""Load and recompute at the same time: the GPU works from the front, the link from the back, until they meet.

Prefill must start at the first token, because every token attends to those before it. Loading may start
anywhere, so it starts with the last token, which would be the most expensive one to recompute.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvlib.cost import recompute_s, transfer_s
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec


@dataclass(frozen=True)
class Split:
    """Who brings which tokens.

    Attributes
    ----------
    recomputed_tokens : int
        Tokens at the front, from the GPU.
    loaded_tokens : int
        The rest, over the link.
    total_s : float
        When both have finished.
    """

    recomputed_tokens: int
    loaded_tokens: int
    total_s: float


def meeting_point(num_tokens: int, compute_s: Callable[[int], float], load_s: Callable[[int], float]) -> Split:
    """The split that finishes first.

    Parameters
    ----------
    num_tokens : int
    compute_s, load_s : callable
        Seconds for the first n tokens, and for n tokens loaded; neither falls as n grows.

    Source: the bidirectional scheduling of Cake (Jin et al. 2025).

    Examples
    --------
    >>> meeting_point(1000, compute_s=lambda n: n * 1e-3, load_s=lambda n: n * 1e-3)     # equal rates: half the time
    Split(recomputed_tokens=500, loaded_tokens=500, total_s=0.5)
    """
    whole("num_tokens", num_tokens)

    def total_s(recomputed: int) -> float:
        return max(compute_s(recomputed), load_s(num_tokens - recomputed))

    # Computing more takes longer and loading less takes less, so the best split is where the two cross.
    loading_waits, computing_waits = 0, num_tokens
    while computing_waits - loading_waits > 1:
        middle = (loading_waits + computing_waits) // 2
        if compute_s(middle) < load_s(num_tokens - middle):
            loading_waits = middle
        else:
            computing_waits = middle
    best = min((loading_waits, computing_waits), key=total_s)
    return Split(best, num_tokens - best, total_s(best))


def split_s(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, recomputed_tokens: int,
    kv_dtype="bf16", num_gpus: int = 1,
) -> tuple[float, float]:
    """Seconds to recompute the first tokens, and to load the KV of all others meanwhile.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> model, gpu, link = get_model("llama-3-8b"), get_gpu("h100-80gb"), get_link("nvme-7gb")
    >>> [round(1e3 * t, 1) for t in split_s(model, gpu, link, 8000, 4000)]     # ms
    [88.3, 93.7]
    """
    loaded_tokens = whole("num_tokens", num_tokens) - whole("recomputed_tokens", recomputed_tokens, minimum=0)
    whole("num_tokens - recomputed_tokens", loaded_tokens, minimum=0)
    compute = recompute_s(model, gpu, recomputed_tokens, num_gpus) if recomputed_tokens else 0.0
    load = transfer_s(model.shape.kv_bytes(loaded_tokens, kv_dtype), link) if loaded_tokens else 0.0
    return compute, load


def best_split(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, kv_dtype="bf16", num_gpus: int = 1
) -> Split:
    """How many of `num_tokens` cached tokens to recompute while the others are loaded.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> model, gpu, link = get_model("llama-3-8b"), get_gpu("h100-80gb"), get_link("nvme-7gb")
    >>> split = best_split(model, gpu, link, 8000)
    >>> split.recomputed_tokens, round(1e3 * split.total_s, 1)                 # loading alone: 187.3 ms
    (4115, 91.0)
    """
    return meeting_point(
        num_tokens,
        compute_s=lambda n: split_s(model, gpu, link, num_tokens, n, kv_dtype, num_gpus)[0],
        load_s=lambda n: split_s(model, gpu, link, num_tokens, num_tokens - n, kv_dtype, num_gpus)[1],
    )
