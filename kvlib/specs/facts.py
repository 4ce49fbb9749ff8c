"""The facts of this room as tables, for the reference pages: every row with its source."""

from kvlib.specs.hardware import GPUS, LINKS
from kvlib.specs.kv_dtypes import KV_DTYPES
from kvlib.specs.models import MODELS
from kvlib.specs.names import spoken
from kvlib.specs.table import describe


def facts(what: str) -> list[list]:
    """A heading row and one row per model, GPU, link or KV format.

    Parameters
    ----------
    what : {"models", "gpus", "links", "formats"}

    Examples
    --------
    >>> facts("gpus")[0]
    ['GPU', 'memory (GB)', 'bandwidth (GB/s)', 'peak (TFLOP/s)', 'efficiency', 'sources']
    """
    return {"models": _models, "gpus": _gpus, "links": _links, "formats": _formats}[what]()


def _models() -> list[list]:
    rows = [
        [spoken(m.name), m.shape.kv_bytes_per_token(), round(m.weight_bytes / 1e9, 1), describe(m.shape), m.source]
        for m in MODELS.values()
    ]
    return [["model", "KV bytes per token (bf16)", "weights (GB)", "what is cached", "source"], *rows]


def _gpus() -> list[list]:
    rows = [
        [spoken(g.name), g.memory_bytes / 1e9, g.bytes_per_s / 1e9, g.peak_flops_per_s / 1e12, round(g.efficiency, 3),
         f"{g.source}. {g.efficiency_source}"]
        for g in GPUS.values()
    ]
    return [["GPU", "memory (GB)", "bandwidth (GB/s)", "peak (TFLOP/s)", "efficiency", "sources"], *rows]


def _links() -> list[list]:
    rows = [
        [link.name, link.bytes_per_s / 1e9, link.efficiency, link.overhead_s * 1e6, link.source] for link in LINKS.values()
    ]
    return [["link", "peak (GB/s)", "efficiency", "overhead per copy (µs)", "source"], *rows]


def _formats() -> list[list]:
    rows = [[d.name, d.bits, d.group_size or "–", d.scale_bits or "–", d.source] for d in KV_DTYPES.values()]
    return [["format", "bits", "numbers per scale", "bits per scale", "source"], *rows]
