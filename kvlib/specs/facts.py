"""The facts of this room as tables, for the reference pages: every row with its source."""

from kvlib.specs.hardware import GPUS, LINKS
from kvlib.specs.kv_dtypes import KV_DTYPES
from kvlib.specs.models import MODELS, ModelSpec
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
    ['GPU', 'memory (GB)', 'bandwidth (GB/s)', 'peak (TFLOP/s)', 'efficiency', 'fixed (ms)', 'source', 'efficiency, fixed']
    """
    return {"models": _models, "gpus": _gpus, "links": _links, "formats": _formats}[what]()


def _models() -> list[list]:
    rows = [
        [spoken(m.name), _billions(m), round(m.weight_bytes / 1e9, 1), m.shape.kv_bytes_per_token(), describe(m.shape), m.source]
        for m in MODELS.values()
    ]
    headings = ["model", "parameters (billions)", "weights (GB)", "KV bytes per token (bf16)", "what is cached", "source"]
    return [headings, *rows]


def _billions(model: ModelSpec) -> str:
    """All parameters, and beside them the active ones of a mixture of experts."""
    total, active = model.total_params / 1e9, model.active_params / 1e9
    # A dense model multiplies a token with everything but, at most, its input embedding.
    is_sparse = model.active_params + model.lm_head_params < model.total_params
    return f"{total:.3g}, of which {active:.3g} active" if is_sparse else f"{total:.3g}"


def _gpus() -> list[list]:
    rows = [
        [spoken(g.name), g.memory_bytes / 1e9, g.bytes_per_s / 1e9, g.peak_flops_per_s / 1e12, round(g.efficiency, 3),
         g.fixed_s * 1e3, g.source, g.efficiency_source]
        for g in GPUS.values()
    ]
    headings = [
        "GPU", "memory (GB)", "bandwidth (GB/s)", "peak (TFLOP/s)", "efficiency", "fixed (ms)", "source", "efficiency, fixed",
    ]
    return [headings, *rows]


def _links() -> list[list]:
    rows = [
        [link.name, link.bytes_per_s / 1e9, link.efficiency, link.overhead_s * 1e6, link.source] for link in LINKS.values()
    ]
    return [["link", "peak (GB/s)", "efficiency", "overhead per copy (µs)", "source"], *rows]


def _formats() -> list[list]:
    rows = [[d.name, d.bits, d.group_size or "–", d.scale_bits or "–", d.source] for d in KV_DTYPES.values()]
    return [["format", "bits", "numbers per scale", "bits per scale", "source"], *rows]
