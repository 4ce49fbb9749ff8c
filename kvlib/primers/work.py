"""How much arithmetic does generating take, with a cache and without? FLOPs of a model, in closed form."""

from kvlib.cost import attention_flops, linear_flops
from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.models import ModelSpec


def tokens_run(prompt_tokens: int, output_tokens: int) -> int:
    """Tokens that pass through the model when each passes once; the last token generated never does.

    Examples
    --------
    >>> tokens_run(4, 3)          # the prompt gives the first token; the first and second give the other two
    6
    """
    return whole("prompt_tokens", prompt_tokens) + whole("output_tokens", output_tokens) - 1


def rows_without_cache(prompt_tokens: int, output_tokens: int) -> int:
    """Key rows each layer and KV head computes when every step runs the whole sequence: p + (p+1) + ….

    Examples
    --------
    >>> rows_without_cache(4, 3)
    15
    """
    end = tokens_run(prompt_tokens, output_tokens)
    return (end * (end + 1) - prompt_tokens * (prompt_tokens - 1)) // 2


def flops_with_cache(model: ModelSpec, prompt_tokens: int, output_tokens: int) -> float:
    """Every token runs once: 2 P n + 4 L h d n^2 / 2 for n tokens, as in one long prefill.

    Examples
    --------
    >>> from kvlib.specs import get_model
    >>> opt = get_model("opt-13b")
    >>> flops_with_cache(opt, 100, 1) == flops_without_cache(opt, 100, 1)
    True
    """
    end = tokens_run(prompt_tokens, output_tokens)
    return linear_flops(model, end) + attention_flops(model, end)


def flops_without_cache(model: ModelSpec, prompt_tokens: int, output_tokens: int) -> float:
    """Each step is a prefill of everything so far: the sum of `flops_with_cache` over the lengths.

    Raises
    ------
    ConfigError
        For a model with a sliding window, whose attention does not grow with the square of the length.
    """
    if any(group.window is not None for group in model.shape.groups):
        raise ConfigError(f"model: got {model.name}, expected one without a sliding window")
    end, before = tokens_run(prompt_tokens, output_tokens), prompt_tokens - 1
    squares = _sum_of_squares(end) - _sum_of_squares(before)
    rows = rows_without_cache(prompt_tokens, output_tokens)
    return linear_flops(model, rows) + attention_flops(model, 1) * squares


def _sum_of_squares(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6
