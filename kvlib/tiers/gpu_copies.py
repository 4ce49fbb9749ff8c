"""GPU-assisted I/O: a kernel whose threads move the pages, instead of one CPU call per piece.

Thousands of threads each keep a few bytes under way, so small pages stop mattering; the price is that the
kernel runs beside prefill and decode and slows them a little. Source: Strata (arXiv 2508.18572), section 4
and figure 5.
"""

from dataclasses import dataclass

from kvlib.specs.checks import real, whole
from kvlib.specs.hardware import LinkSpec
from kvlib.tiers.transfer import as_link, littles_law


@dataclass(frozen=True)
class GpuCopies:
    """A copy kernel of a few large thread blocks.

    Attributes
    ----------
    thread_blocks : int
        Strata's default is 2 for loading (on the critical path) and 1 for backing up (off it).
    threads_per_block : int
    thread_bytes : int
        Bytes one thread has under way.
    latency_s : float
        From a thread's request to its bytes.
    prefill_slowdown, decode_slowdown : float
        Share by which one running thread block slows each.
    source : str

    Examples
    --------
    >>> round(GpuCopies().bytes_per_s("pcie5-x16") / 1e9, 1)
    50.0
    """

    thread_blocks: int = 2
    threads_per_block: int = 1024
    thread_bytes: int = 32
    latency_s: float = 2 * 1024 * 32 / 50e9
    prefill_slowdown: float = 0.05 / 2
    decode_slowdown: float = 0.10 / 2
    source: str = (
        "Strata, figure 5, H200: 2 blocks of 1,024 threads reach about 50 GB/s, cost prefill under 5% and "
        "decode about 10%. We fit the latency to the first; that the others grow with the blocks is assumed"
    )

    def __post_init__(self) -> None:
        for field in ("thread_blocks", "threads_per_block", "thread_bytes"):
            whole(field, getattr(self, field))
        real("latency_s", self.latency_s, above=True)
        for field in ("prefill_slowdown", "decode_slowdown"):
            real(field, getattr(self, field))

    @property
    def threads(self) -> int:
        return self.thread_blocks * self.threads_per_block

    def bytes_per_s(self, link: str | LinkSpec | float) -> float:
        """Throughput over `link`: Little's law with one copy per thread, up to what one large copy reaches.

        Examples
        --------
        >>> [round(GpuCopies(blocks).bytes_per_s("pcie5-x16") / 1e9, 1) for blocks in (1, 2, 3)]
        [25.0, 50.0, 51.2]
        """
        ceiling = as_link(link).effective_bytes_per_s
        return littles_law(self.threads, self.thread_bytes, self.latency_s, ceiling)

    @property
    def prefill_factor(self) -> float:
        """How many times longer prefill takes while the kernel runs beside it."""
        return 1 + self.thread_blocks * self.prefill_slowdown

    @property
    def decode_factor(self) -> float:
        """How many times longer a decode step takes while the kernel runs beside it."""
        return 1 + self.thread_blocks * self.decode_slowdown
