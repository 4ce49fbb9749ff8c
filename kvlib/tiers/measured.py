"""The same question on the reader's own machine: scattered pages against one contiguous copy.

Imports numpy, and torch where asked for, only when called. On a CPU both sides are memory, so what shows is
the cost of each separate copy (an interpreter's instead of a driver's); with CUDA the source is pinned host
memory and the copies are the ones that Strata is about.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, whole

BACKENDS = ("numpy", "torch", "cuda")


@dataclass(frozen=True)
class Measured:
    """Copying the same bytes three ways, in bytes per second (best of several runs).

    Attributes
    ----------
    backend : str
    piece_bytes : int
        Bytes of one contiguous piece.
    contiguous, one_by_one, gathered : float
        One copy of everything; one copy per scattered piece; one gather of all scattered pieces (with CUDA, a
        gather on the host and one copy: PyTorch has no kernel that reads scattered host memory).
    """

    backend: str
    piece_bytes: int
    contiguous: float
    one_by_one: float
    gathered: float

    @property
    def one_by_one_share(self) -> float:
        return self.one_by_one / self.contiguous

    @property
    def gathered_share(self) -> float:
        return self.gathered / self.contiguous


def measure_copies(
    piece_bytes: int, backend: str = "numpy", total_bytes: int = 16 * 2**20, repeats: int = 20, seed: int = 1
) -> Measured:
    """Copy `total_bytes` in scattered pieces of `piece_bytes`, and in one piece.

    Parameters
    ----------
    piece_bytes : int
        A multiple of 8, at most `total_bytes`.
    backend : str
        ``"numpy"``, ``"torch"`` (CPU) or ``"cuda"`` (pinned host memory to the GPU).
    total_bytes : int
    repeats : int
        The best of so many runs counts.
    seed : int
        Of the order of the pieces.

    Raises
    ------
    ConfigError
        For sizes that do not fit, or ``"cuda"`` on a machine without it.

    Examples
    --------
    >>> measured = measure_copies(4096, total_bytes=2**16, repeats=1)
    >>> measured.backend, measured.contiguous > 0
    ('numpy', True)
    """
    one_of("backend", backend, BACKENDS)
    whole("repeats", repeats)
    if whole("piece_bytes", piece_bytes) % 8 or piece_bytes > whole("total_bytes", total_bytes):
        raise ConfigError(f"piece_bytes: got {piece_bytes}, expected a multiple of 8 up to {total_bytes}")
    pieces = total_bytes // piece_bytes
    order = list(range(2 * pieces))
    random.Random(seed).shuffle(order)
    ways = _numpy_ways if backend == "numpy" else _torch_ways
    made = ways(order[:pieces], 2 * pieces, piece_bytes // 8, backend)
    return Measured(backend, piece_bytes, *(pieces * piece_bytes / s for s in _best_s(made, repeats)))


def _numpy_ways(order: list[int], slots: int, words: int, backend: str) -> tuple[Callable, ...]:
    import numpy as np

    pool = np.arange(slots * words, dtype=np.int64).reshape(slots, words)
    target = np.zeros((len(order), words), dtype=np.int64)
    index = np.array(order)

    def contiguous():
        np.copyto(target, pool[: len(order)])
        return target

    def one_by_one():
        for row, slot in enumerate(order):
            target[row] = pool[slot]
        return target

    def gathered():
        # Without a mode, take() checks bounds into a second buffer.
        return np.take(pool, index, axis=0, out=target, mode="clip")

    return contiguous, one_by_one, gathered


def _torch_ways(order: list[int], slots: int, words: int, backend: str) -> tuple[Callable, ...]:
    import torch

    if backend == "cuda" and not torch.cuda.is_available():
        raise ConfigError("backend: got 'cuda', expected a machine with a CUDA device")
    device = torch.device("cuda" if backend == "cuda" else "cpu")
    pool = torch.arange(slots * words, dtype=torch.int64).reshape(slots, words)
    if backend == "cuda":
        pool = pool.pin_memory()
    target = torch.zeros((len(order), words), dtype=torch.int64, device=device)
    staging = torch.zeros((len(order), words), dtype=torch.int64, pin_memory=backend == "cuda")
    index = torch.tensor(order)

    def wait():
        if backend == "cuda":
            torch.cuda.synchronize()

    def contiguous():
        target.copy_(pool[: len(order)], non_blocking=True)
        wait()
        return target

    def one_by_one():
        for row, slot in enumerate(order):
            target[row].copy_(pool[slot], non_blocking=True)
        wait()
        return target

    def gathered():
        if backend == "torch":
            return torch.index_select(pool, 0, index, out=target)
        torch.index_select(pool, 0, index, out=staging)
        target.copy_(staging, non_blocking=True)
        wait()
        return target

    return contiguous, one_by_one, gathered


def _best_s(ways: tuple[Callable, ...], repeats: int) -> list[float]:
    """Shortest time of each way; they take turns, so that a busy moment of the machine meets all of them."""
    best = [float("inf")] * len(ways)
    for turn in range(repeats + 1):
        for i, way in enumerate(ways):
            start = time.perf_counter()
            way()
            took = time.perf_counter() - start
            if turn:                        # the first turn pays for memory that was never touched
                best[i] = min(best[i], took)
    return best
