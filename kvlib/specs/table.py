"""The models of the book as a text table, for the notebooks and the reference page."""

from kvlib.specs.models import MODELS
from kvlib.specs.names import spoken
from kvlib.specs.shape import KvShape


def describe(shape: KvShape) -> str:
    """How the bytes per token come about, one group of like layers after the other.

    Examples
    --------
    >>> describe(MODELS["gpt-oss-20b"].shape)
    '12 layers × 8 KV heads × 128 numbers, window 128; 12 layers × 8 KV heads × 128 numbers'
    """
    groups = []
    for group in shape.groups:
        what = "one latent" if group.latent else f"{group.kv_heads} KV head{'s' if group.kv_heads > 1 else ''}"
        window = f", window {group.window:,}" if group.window else ""
        groups.append(f"{group.layers} layers × {what} × {group.elements_per_head} numbers{window}")
    return "; ".join(groups)


def model_table(context_tokens: int) -> str:
    """Bytes per token (bf16) and the size of one request, per model.

    Examples
    --------
    >>> model_table(8192).splitlines()[1]
    'OPT-13B           819,200      6.71 GB'
    """
    lines = [f"{'model':<13}{'bytes/token':>12}{f'{context_tokens:,} tokens':>16}"]
    for model in MODELS.values():
        size = f"{model.shape.kv_bytes(context_tokens) / 1e9:.2f} GB"
        lines.append(f"{spoken(model.name):<13}{model.shape.kv_bytes_per_token():>12,}{size:>13}")
    return "\n".join(lines)
