"""One long prompt over several nodes, in chunks: each node holds a share of the layers.

Chunked pipeline parallelism gives each node a share of the layers and cuts the prompt into chunks. Chunk 2
enters the first node while chunk 1 is on the second; that is legal because a chunk needs only the KV of the
chunks before it. Only activations cross a boundary between nodes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.cost import mixed_step_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec

BYTES_PER_ACTIVATION = 2  # bf16


@dataclass(frozen=True)
class Stage:
    """One chunk on one node, from `start_s` to `end_s`."""

    node: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Pipeline:
    """A prompt's way through the pipeline.

    Attributes
    ----------
    stages : tuple of Stage
        Chunk by chunk, and node by node within a chunk.
    serial_s : float
        The same chunks on one node that holds all layers.
    """

    stages: tuple[Stage, ...]
    serial_s: float

    @property
    def prefill_s(self) -> float:
        """When the last chunk leaves the last node."""
        return self.stages[-1].end_s

    @property
    def speedup(self) -> float:
        """How many times faster than one node."""
        return self.serial_s / self.prefill_s


def run_pipeline(chunk_s: Sequence[float], nodes: int, handoff_s: Sequence[float] | float = 0.0) -> Pipeline:
    """Send chunks through ``nodes`` equal stages; chunk ``j`` takes ``chunk_s[j] / nodes`` on each.

    A handoff runs beside the computation: a node sends chunk ``j`` on while it works on chunk ``j + 1``.

    Parameters
    ----------
    chunk_s : sequence of float
        Time of each chunk on one node that holds all layers.
    nodes : int
    handoff_s : float or sequence of float
        Time to send the activations of a chunk to the next node.

    Raises
    ------
    ConfigError
        For no chunks, no nodes, or times that are negative or not finite.

    Source: Qin et al. 2025 (Mooncake), section 5.1; lecture 9, s2.3.

    Examples
    --------
    m equal chunks over X nodes take (m + X - 1) / m of the ideal: 16 over 4 are 64 / 19 times faster.

    >>> round(run_pipeline([1.0] * 16, nodes=4).speedup, 2)
    3.37
    """
    whole("nodes", nodes)
    if not chunk_s:
        raise ConfigError("chunk_s: got no chunks, expected at least 1")
    handoffs = [handoff_s] * len(chunk_s) if isinstance(handoff_s, (int, float)) else list(handoff_s)
    if len(handoffs) != len(chunk_s):
        raise ConfigError(f"handoff_s: got {len(handoffs)} times, expected {len(chunk_s)}, one per chunk")
    free_s, stages = [0.0] * nodes, []
    for chunk, (whole_s, handoff) in enumerate(zip(chunk_s, handoffs)):
        share_s, arrives_s = real("chunk_s", whole_s) / nodes, 0.0
        for node in range(nodes):
            start_s = max(arrives_s, free_s[node])
            free_s[node] = start_s + share_s
            stages.append(Stage(node, chunk, start_s, free_s[node]))
            arrives_s = free_s[node] + real("handoff_s", handoff)
    return Pipeline(tuple(stages), math.fsum(chunk_s))


def chunks_for_share(share_of_ideal: float, nodes: int) -> int:
    """The fewest equal chunks whose speed-up is at least that share of ``nodes``: m / (m + X - 1) >= share.

    Raises
    ------
    ConfigError
        For a share that is not between 0 and 1: a pipeline of two nodes or more never reaches all of it.

    Examples
    --------
    >>> chunks_for_share(0.9, nodes=4)
    27
    """
    share = real("share_of_ideal", share_of_ideal, above=True)
    if share >= 1:
        raise ConfigError(f"share_of_ideal: got {share_of_ideal!r}, expected a share below 1")
    chunks = max(1, math.ceil(share * (whole("nodes", nodes) - 1) / (1 - share) - 1e-9))
    return chunks


def cut(num_tokens: int, chunk_tokens: int) -> list[tuple[int, int]]:
    """Cut a prompt into ``(new_tokens, cached_tokens)`` chunks, the last one perhaps shorter.

    Examples
    --------
    >>> cut(5, 2)
    [(2, 0), (2, 2), (1, 4)]
    """
    whole("num_tokens", num_tokens)
    whole("chunk_tokens", chunk_tokens)
    return [(min(chunk_tokens, num_tokens - start), start) for start in range(0, num_tokens, chunk_tokens)]


def chunked_pipeline(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, *, nodes: int, chunk_tokens: int,
    gpus_per_node: int = 8,
) -> Pipeline:
    """Prefill one prompt by chunked pipeline parallelism over ``nodes`` nodes.

    Later chunks attend to more and take longer. A chunk that is too small to keep the GPUs busy reads the
    weights in vain; ``kvlib.cost.mixed_step_s`` charges that.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> run = chunked_pipeline(get_model("llama-2-70b"), get_gpu("a800-80gb"), get_link("net-800g"), 131_072,
    ...     nodes=4, chunk_tokens=4096)
    >>> 3.3 < run.speedup < 4
    True
    """
    chunks = cut(num_tokens, chunk_tokens)
    chunk_s = [mixed_step_s(model, gpu, [chunk], (), num_gpus=gpus_per_node) for chunk in chunks]
    handoff_s = [transfer_s(activation_bytes(model, new), link) for new, _ in chunks]
    return run_pipeline(chunk_s, nodes, handoff_s)


def activation_bytes(model: ModelSpec, num_tokens: int) -> int:
    """Bytes of the hidden states of ``num_tokens`` tokens, which is what passes between two layers.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> activation_bytes(get_model("llama-2-70b"), 1)
    16384
    """
    model.require("hidden_size")
    return whole("num_tokens", num_tokens) * model.hidden_size * BYTES_PER_ACTIVATION
