"""Attention that keeps every token and reads few: whole pages, chosen anew for each query.

Quest (Tang et al. 2024): of each page's keys, keep the smallest and the largest number in every channel. A
query's score with any key of the page is at most ``Σ max(q · smallest, q · largest)``, so the pages with the
highest bounds are read.
"""

import numpy as np

from kvlib.specs.checks import whole
from kvlib.tensors.cache import ContiguousCache


class SelectedPages(ContiguousCache):
    """A cache whose context is read in part: the best pages by Quest's bound, for each query and head.

    Tokens that come after the context are always read.

    Parameters
    ----------
    xp : NumpyBackend or TorchBackend
    kv : array [layers, 2, tokens, channels]
        The context's keys and values.
    kv_heads : int
    page_tokens, pages : int
        Size of a page and how many each query reads.
    """

    def __init__(self, xp, kv: np.ndarray, kv_heads: int, page_tokens: int, pages: int):
        super().__init__(xp)
        self._page_tokens, self._pages = whole("page_tokens", page_tokens), whole("pages", pages)
        self._context = kv.shape[2]
        self.extend([self._context])
        for layer, (keys, values) in enumerate(kv):
            rows = (xp.floats(part.reshape(self._context, kv_heads, -1)) for part in (keys, values))
            self.write(layer, *rows)

    def read(self, layer: int, query):
        """Attend to the chosen pages and to what follows the context (see `kvlib.tensors.cache`)."""
        queries = self.xp.to_numpy(query)
        keys, values = (self.xp.to_numpy(part[0][layer]) for part in (self.keys, self.values))
        new, heads, head_dim = queries.shape
        tokens, kv_heads, _ = keys.shape
        hidden = np.arange(tokens) > np.arange(tokens - new, tokens)[:, None]
        answers = np.empty_like(queries)
        for head in range(heads):
            own = head * kv_heads // heads
            own_keys = keys[:, own]
            scores = queries[:, head] @ own_keys.T * head_dim**-0.5
            scores[hidden | self._unread(queries[:, head], own_keys)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            answers[:, head] = (weights / weights.sum(-1, keepdims=True)) @ values[:, own]
        return self.xp.floats(answers)

    def _unread(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Which tokens each query leaves out: ``[queries, tokens]``."""
        bounds = page_bounds(queries, keys[: self._context], self._page_tokens)
        best = np.argsort(-bounds, axis=-1, kind="stable")[:, : self._pages]
        chosen = np.zeros(bounds.shape, bool)
        np.put_along_axis(chosen, best, True, axis=-1)
        unread = np.zeros((len(queries), len(keys)), bool)
        unread[:, : self._context] = ~np.repeat(chosen, self._page_tokens, axis=-1)[:, : self._context]
        return unread


def page_bounds(queries: np.ndarray, keys: np.ndarray, page_tokens: int) -> np.ndarray:
    """The largest score each query can have with any key of each page: ``[queries, pages]``.

    Examples
    --------
    Page 0 holds the keys (1, 0) and (0, 2); the bound 1 + 2 is above both scores, 1 and 2.

    >>> keys = np.array([[1.0, 0.0], [0.0, 2.0], [0.5, 0.5]])
    >>> page_bounds(np.array([[1.0, 1.0]]), keys, page_tokens=2).tolist()
    [[3.0, 1.0]]
    """
    pages = [keys[start:start + page_tokens] for start in range(0, len(keys), page_tokens)]
    smallest, largest = (np.array([pick(page, axis=0) for page in pages]) for pick in (np.min, np.max))
    return np.maximum(queries, 0) @ largest.T + np.minimum(queries, 0) @ smallest.T
