"""Sending a context chunk by chunk while the bandwidth changes (CacheGen, section 5.3 and algorithm 1).

Each chunk goes as one of several encodings of its KV, or as text from which the receiver recomputes it. The
link sends the next chunk while the GPU decodes the last; but decoding and recomputing share one GPU, and a
recomputed chunk needs all chunks before it. Time is in whole nanoseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.cachegen.bandwidth import NS_PER_S, Bandwidth
from kvlib.cost import mixed_step_s
from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole
from kvlib.specs.hardware import GpuSpec
from kvlib.specs.models import ModelSpec

TEXT = "text"
ADAPTIVE, ORACLE = "adaptive", "oracle"
TEXT_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Encoding:
    """One way to send KV: its size, and what it loses (0 = nothing, in whatever unit the caller compares)."""

    name: str
    bits_per_number: float
    loss: float


@dataclass(frozen=True)
class Chunk:
    """What one chunk costs: bytes on the link and time on the GPU for each choice.

    Parameters
    ----------
    num_bytes, gpu_ns : dict
        By choice: the encodings' names, and ``"text"``.
    """

    num_bytes: dict[str, int]
    gpu_ns: dict[str, int]


@dataclass(frozen=True)
class Context:
    """A context ready to be sent.

    Parameters
    ----------
    chunks : tuple of Chunk
    losses : dict
        Loss of each choice, finest first; text loses nothing.
    """

    chunks: tuple[Chunk, ...]
    losses: dict[str, float]


@dataclass(frozen=True)
class Sent:
    """What became of one chunk."""

    choice: str
    sent_ns: int
    arrived_ns: int
    ready_ns: int


@dataclass(frozen=True)
class Delivery:
    """A whole context on the receiver's GPU."""

    chunks: tuple[Sent, ...]
    loss: float

    @property
    def ready_s(self) -> float:
        """When the last chunk is ready: the context's share of TTFT."""
        return max((chunk.ready_ns for chunk in self.chunks), default=0) / NS_PER_S


def prepare(
    model: ModelSpec,
    gpu: GpuSpec,
    tokens: int,
    chunk_tokens: int,
    encodings: Sequence[Encoding],
    decode_numbers_per_s: float,
) -> Context:
    """Cut a context into chunks and price every choice for each.

    A chunk that is recomputed costs one prefill step on top of the chunks before it, in which a short chunk
    waits for the weights to be read. Encoding happened before and is not in this time.

    Parameters
    ----------
    encodings : sequence of Encoding
        Finest first.
    decode_numbers_per_s : float
        KV numbers the receiver's GPU decodes per second.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_model
    >>> model, gpu, eight = get_model("mistral-7b"), get_gpu("a40"), Encoding("8-bit", 8.0, 0.0)
    >>> context = prepare(model, gpu, 9600, 1500, [eight], 4e9)
    >>> len(context.chunks), context.chunks[0].num_bytes["8-bit"] == 1500 * 65536
    (7, True)
    """
    whole("tokens", tokens)
    numbers_per_token = model.shape.kv_bytes_per_token("bf16") // 2
    decode = real("decode_numbers_per_s", decode_numbers_per_s, above=True)
    if not encodings or TEXT in [encoding.name for encoding in encodings]:
        raise ConfigError(
            f"encodings: got {list(encodings)}, expected at least one, and none called {TEXT!r}"
        )
    chunks = []
    for begin in range(0, tokens, whole("chunk_tokens", chunk_tokens)):
        length = min(chunk_tokens, tokens - begin)
        numbers = length * numbers_per_token
        sizes = {
            e.name: round(numbers * real("bits_per_number", e.bits_per_number, above=True) / 8)
            for e in encodings
        }
        gpu_ns = {e.name: round(NS_PER_S * numbers / decode) for e in encodings}
        sizes[TEXT] = length * TEXT_BYTES_PER_TOKEN
        gpu_ns[TEXT] = round(NS_PER_S * mixed_step_s(model, gpu, [(length, begin)], []))
        chunks.append(Chunk(sizes, gpu_ns))
    return Context(tuple(chunks), {TEXT: 0.0, **{e.name: e.loss for e in encodings}})


def stream(
    context: Context, bandwidth: Bandwidth, policy: str, slo_s: float, first_guess_gbps: float = 3.0
) -> Delivery:
    """Send `context` and say what arrived when.

    Parameters
    ----------
    policy : str
        ``"adaptive"`` chooses each chunk from the throughput of the last one; ``"oracle"`` by the same rule
        from the bandwidth to come, which no real sender knows; any choice's name sends everything that way.
    slo_s : float
        Seconds within which the context should be ready.
    first_guess_gbps : float
        What the adaptive sender believes before it has sent anything.

    Examples
    --------
    >>> from kvlib.cachegen.bandwidth import steady
    >>> chunk = Chunk({"fine": 10**8, "coarse": 10**7, "text": 10}, {"fine": 0, "coarse": 0, "text": 10**9})
    >>> context = Context((chunk,) * 3, {"text": 0.0, "fine": 0.1, "coarse": 1.0})
    >>> [sent.choice for sent in stream(context, steady(1.6), "adaptive", slo_s=1.0).chunks]
    ['fine', 'coarse', 'coarse']
    """
    one_of("policy", policy, (ADAPTIVE, ORACLE, *context.losses))
    slo_ns = round(real("slo_s", slo_s, above=True) * NS_PER_S)
    believed = round(real("first_guess_gbps", first_guess_gbps, above=True) * NS_PER_S / 8)
    link_ns, gpu_ns, done = 0, 0, []
    for at, chunk in enumerate(context.chunks):
        rest = context.chunks[at:]
        if policy == ADAPTIVE:
            guess = Bandwidth((0,), (believed,))
            choice = choose(rest, context.losses, guess, link_ns, gpu_ns, slo_ns)
        elif policy == ORACLE:
            choice = choose(rest, context.losses, bandwidth, link_ns, gpu_ns, slo_ns)
        else:
            choice = policy
        begin, (link_ns, gpu_ns) = link_ns, finish(chunk, choice, bandwidth, link_ns, gpu_ns)
        done.append(Sent(choice, begin, link_ns, gpu_ns))
        # A few bytes of text say nothing about a link's throughput.
        if choice != TEXT:
            believed = max(1, chunk.num_bytes[choice] * NS_PER_S // max(1, link_ns - begin))
    return Delivery(tuple(done), math.fsum(context.losses[sent.choice] for sent in done) / len(done))


def finish(chunk: Chunk, choice: str, bandwidth: Bandwidth, link_ns: int, gpu_ns: int) -> tuple[int, int]:
    """When the link is free and the chunk is ready, if link and GPU are busy until `link_ns` and `gpu_ns`."""
    arrived = bandwidth.end_ns(link_ns, chunk.num_bytes[choice])
    return arrived, max(arrived, gpu_ns) + chunk.gpu_ns[choice]


def choose(
    rest: Sequence[Chunk],
    losses: dict[str, float],
    bandwidth: Bandwidth,
    link_ns: int,
    gpu_ns: int,
    slo_ns: int,
) -> str:
    """The choice that loses least among those with which all of `rest` would be ready in time.

    When none would be in time, the one that is ready first. Source: CacheGen, algorithm 1.
    """
    ready = {}
    # Of equal losses the one named first wins, so the answer does not hang on anything else.
    for choice in sorted(losses, key=losses.get):
        link, gpu = link_ns, gpu_ns
        for chunk in rest:
            link, gpu = finish(chunk, choice, bandwidth, link, gpu)
        if gpu <= slo_ns:
            return choice
        ready[choice] = gpu
    return min(ready, key=ready.get)
