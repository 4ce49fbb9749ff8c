"""How fast pages of KV cross a link: Little's law, and where the pieces of a page lie.

A copy of S bytes is under way for L = overhead + S / peak seconds. With C copies under way at a time,
Little's law gives the throughput C * S / L, up to the link's peak. Source: Strata (arXiv 2508.18572), section
3; lecture 9, s4.1.
"""

import math

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole
from kvlib.specs.hardware import LinkSpec, get_link

LAYOUTS = ("layer_first", "page_first")

# What one cudaMemcpyAsync costs before its first byte moves: our fit to Strata's 22% at page 32 (oracle
# L9.pcie22).
COPY_OVERHEAD_S = 3.6e-6


def as_link(link: str | LinkSpec | float) -> LinkSpec:
    """The link of that name, the link itself, or a link without losses of that many bytes per second.

    Examples
    --------
    >>> as_link("pcie5-x16").bytes_per_s == as_link(64e9).bytes_per_s
    True
    """
    if isinstance(link, LinkSpec):
        return link
    if isinstance(link, str):
        return get_link(link)
    if isinstance(link, (int, float)) and not isinstance(link, bool):
        return LinkSpec("given rate", bytes_per_s=link)
    raise ConfigError(f"link: got {link!r}, expected a link's name, a LinkSpec or bytes per second")


def littles_law(copies_in_flight: int, copy_bytes: float, latency_s: float, peak_bytes_per_s: float) -> float:
    """Throughput in bytes/s of `copies_in_flight` copies that each take `latency_s`: min(C * S / L, peak).

    Parameters
    ----------
    copies_in_flight : int
        Copies under way at the same time.
    copy_bytes : float
        Bytes of one copy.
    latency_s : float
        From the start of one copy to its end, in seconds.
    peak_bytes_per_s : float
        What the link can do.

    Raises
    ------
    ConfigError
        For anything that is not positive and finite.

    Examples
    --------
    Lecture 9, exercise 4: 64 kB in 4 us, alone and in pairs; then 1,000 threads of 128 bytes in 1 us, in
    GB/s.

    >>> [littles_law(c, 64e3, 4e-6, 64e9) / 1e9 for c in (1, 2)]
    [16.0, 32.0]
    >>> littles_law(1000, 128, 1e-6, 64e9) / 1e9
    64.0
    """
    whole("copies_in_flight", copies_in_flight)
    real("copy_bytes", copy_bytes, above=True)
    real("latency_s", latency_s, above=True)
    real("peak_bytes_per_s", peak_bytes_per_s, above=True)
    return min(copies_in_flight * copy_bytes / latency_s, peak_bytes_per_s)


def copies_per_page(layers: int, layout: str = "layer_first", tensors: int = 2) -> int:
    """Separate copies that one page of tokens needs.

    ``layer_first`` keeps one pool per layer and tensor, so a page lies in layers * tensors pieces;
    ``page_first`` keeps a page together.

    Parameters
    ----------
    layers : int
    layout : str
        ``"layer_first"`` or ``"page_first"``.
    tensors : int
        2 for keys and values, 1 for an MLA latent.

    Examples
    --------
    >>> copies_per_page(32), copies_per_page(32, "page_first"), copies_per_page(61, tensors=1)
    (64, 1, 61)
    """
    one_of("layout", layout, LAYOUTS)
    pieces = whole("layers", layers) * whole("tensors", tensors)
    return pieces if layout == "layer_first" else 1


def copy_bytes(
    page_tokens: int, kv_bytes_per_token: float, layers: int, layout: str = "layer_first", tensors: int = 2
) -> float:
    """Bytes of each of those copies.

    Examples
    --------
    >>> copy_bytes(32, 131072, layers=32), copy_bytes(32, 131072, layers=32, layout="page_first")
    (65536.0, 4194304.0)
    """
    tokens = real("page_tokens", whole("page_tokens", page_tokens))
    return tokens * real("kv_bytes_per_token", kv_bytes_per_token, above=True) / copies_per_page(layers, layout, tensors)


def effective_bandwidth(
    page_tokens: int,
    kv_bytes_per_token: float,
    layers: int,
    link: str | LinkSpec | float,
    layout: str = "layer_first",
    overhead_s: float = COPY_OVERHEAD_S,
    tensors: int = 2,
) -> float:
    """Bytes/s that pages of KV cross `link` when the CPU issues one copy after the other.

    S / (overhead + S / peak), S the bytes of one copy. The overhead stands against the link's *peak*
    rate: this is Little's law with one copy under way.

    Parameters
    ----------
    page_tokens : int
        Tokens per page (block).
    kv_bytes_per_token : float
        Over all layers, keys and values together.
    layers : int
    link : str, LinkSpec or float
        A name of ``kvlib.specs.LINKS``, a link, or a peak rate in bytes/s.
    layout : str
        ``"layer_first"``: tensors * layers copies a page; ``"page_first"``: one.
    overhead_s : float
        Seconds each copy costs before its first byte moves; 0 for an ideal link.
    tensors : int
        2 for keys and values, 1 for an MLA latent.

    Returns
    -------
    float
        Bytes per second, never above the link's peak.

    Raises
    ------
    ConfigError
        For an unknown link or layout, or a size that is not positive.

    Examples
    --------
    Strata, figure 3: Llama-3.1-8B, page 32, on PCIe 5.0 and on the link of a GH200, as a share of the peak.

    >>> round(effective_bandwidth(32, 131072, 32, "pcie5-x16") / 64e9, 3)
    0.221
    >>> round(effective_bandwidth(32, 131072, 32, "gh200-host") / 384e9, 3)
    0.045
    """
    peak = as_link(link).bytes_per_s
    size = copy_bytes(page_tokens, kv_bytes_per_token, layers, layout, tensors)
    return littles_law(1, size, real("overhead_s", overhead_s) + size / peak, peak)


def page_tokens_for_share(
    share: float,
    kv_bytes_per_token: float,
    layers: int,
    link: str | LinkSpec | float,
    layout: str = "layer_first",
    overhead_s: float = COPY_OVERHEAD_S,
    tensors: int = 2,
) -> int:
    """The smallest page, in tokens, that reaches `share` of the link's peak.

    From S / (overhead + S / peak) = share * peak follows S = overhead * peak * share / (1 - share).

    Raises
    ------
    ConfigError
        For a share of 1 or more: no page size pays the overhead back entirely.

    Examples
    --------
    >>> page_tokens_for_share(0.75, 131072, 32, "pcie5-x16")
    338
    >>> page_tokens_for_share(0.75, 131072, 32, "pcie5-x16", layout="page_first")
    6
    """
    if not real("share", share, above=True) < 1:
        raise ConfigError(f"share: got {share!r}, expected a number above 0 and below 1")
    needed = real("overhead_s", overhead_s) * as_link(link).bytes_per_s * share / (1 - share)
    pages = needed / copy_bytes(1, kv_bytes_per_token, layers, layout, tensors)
    return max(1, math.ceil(pages))
