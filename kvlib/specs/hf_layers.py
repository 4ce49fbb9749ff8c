"""What is each layer? Full attention, attention with a window, a recurrent state, several, or none.

A file either lists its layers or leaves the pattern to its family. Both end as a list, one kind per layer.
"""

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.hf_families import Family
from kvlib.specs.hf_fields import Fields

FULL, WINDOW, CHUNK, STATE, BOTH, NOTHING = "full", "window", "chunk", "state", "full and state", "nothing"

# The words files use. A word that is not here is an error: it may cache in a way we do not know.
_WORDS = {
    "full_attention": FULL, "attention": FULL, "global": FULL, "full": FULL, "*": FULL,
    "indexed_attention": FULL, "deepseek_sparse_attention": FULL,
    "sliding_attention": WINDOW, "sliding_window_attention": WINDOW, "local_attention": WINDOW,
    "local": WINDOW, "chunked_attention": CHUNK,
    "linear_attention": STATE, "mamba": STATE, "mamba2": STATE, "recurrent": STATE, "conv": STATE, "M": STATE,
    "hybrid": BOTH,
    1: FULL, 0: STATE,                  # MiniMax's attn_type_list
    "mlp": NOTHING, "moe": NOTHING, "-": NOTHING, "E": NOTHING,
}

MAX_LAYERS = 10_000

# Fields that say by rule what a list of layers says in full.
_RULE_FIELDS = (
    "hybrid_override_pattern", "sliding_window_pattern", "_sliding_window_pattern",
    "full_attention_interval", "global_attn_every_n_layers", "prefix_dense_sliding_window_pattern",
    "no_rope_layers", "no_rope_layer_interval", "attention_chunk_size", "attn_layer_indices",
    "full_attn_idxs", "hybrid_layer_ids", "hybrid_layer_pattern", "attn_type_list", "attn_layer_period",
    "attn_layer_offset", "block_types", "_block_types",
)


def layer_kinds(fields: Fields, family: Family) -> list[str]:
    """The kind of every layer that stores something of its own, first to last.

    Raises
    ------
    ConfigError
        For a kind that is not known, a list whose length is not the number of layers, or no number of layers.

    Examples
    --------
    >>> from kvlib.specs.hf_families import family
    >>> gemma = family(pattern="full_every", full_every=2)
    >>> layer_kinds(Fields("gemma2", {"num_hidden_layers": 3}, gemma.defaults, {}), gemma)
    ['window', 'full', 'window']
    """
    kinds = _listed(fields)
    if kinds is None:
        kinds = PATTERNS[family.pattern](fields, layer_count(fields))
    else:
        _check_list(fields, kinds)
    if not fields.flag("use_sliding_window", True):
        fields.ignore("sliding_window", "sliding_window_pattern")
        kinds = [FULL if kind == WINDOW else kind for kind in kinds]
    return _without_borrowers(fields, kinds)


def layer_count(fields: Fields) -> int:
    """The number of layers, refused where it cannot be one (we keep a list with an entry per layer)."""
    layers = fields.size("layers")
    if layers > MAX_LAYERS:
        raise ConfigError(f"num_hidden_layers: got {layers}, expected at most {MAX_LAYERS}")
    return layers


def _check_list(fields: Fields, kinds: list[str]) -> None:
    """A list of layers must be as long as the file says; the rule it stands in for no longer matters."""
    if not kinds:
        raise ConfigError("layer_types: got an empty list, expected the kind of every layer")
    if fields.value("layers") is not None and fields.size("layers") != len(kinds):
        raise ConfigError(f"layer_types: got {len(kinds)} layers, expected {fields.size('layers')}")
    fields.ignore(*_RULE_FIELDS, *fields.spellings("window"))


def window_of(fields: Fields, kind: str) -> int | None:
    """Tokens a layer of that kind needs; None when it needs them all."""
    if kind == WINDOW:
        return fields.size("window")
    return fields.number("attention_chunk_size") if kind == CHUNK else None


def _listed(fields: Fields) -> list[str] | None:
    """The layers as the file lists them, under whichever name; None if it does not."""
    pattern = fields.raw("hybrid_override_pattern")
    for name in ("layer_types", "layers_block_type"):
        words = fields.listed(name)
        if words is not None:
            return [_kind(name, word) for word in words]
    if pattern is not None:
        if not isinstance(pattern, str):
            raise ConfigError(f"hybrid_override_pattern: got {pattern!r}, expected a string of layer letters")
        return [_kind("hybrid_override_pattern", letter) for letter in pattern]
    flags = fields.listed("attn_type_list")
    return None if flags is None else [_kind("attn_type_list", flag) for flag in flags]


def _kind(name: str, word: object) -> str:
    if isinstance(word, (bool, list, dict)) or word not in _WORDS:
        raise ConfigError(f"{name}: got {word!r}, expected one of {', '.join(map(str, _WORDS))}")
    return _WORDS[word]


def _without_borrowers(fields: Fields, kinds: list[str]) -> list[str]:
    """Drop the last layers where they read the cache of an earlier layer and keep none (Gemma 3n)."""
    shared = whole("num_kv_shared_layers", fields.raw("num_kv_shared_layers") or 0, minimum=0)
    if shared >= len(kinds) > 0:
        raise ConfigError(f"num_kv_shared_layers: got {shared}, expected fewer than the {len(kinds)} layers")
    return kinds[: len(kinds) - shared]


def _full(fields: Fields, layers: int) -> list[str]:
    return [FULL] * layers


def _has_window(fields: Fields) -> bool:
    return fields.flag("use_sliding_window", True) and fields.optional_size("window") is not None


def _all_windowed(fields: Fields, layers: int) -> list[str]:
    return [WINDOW if _has_window(fields) else FULL] * layers


def _windowed_from(fields: Fields, layers: int) -> list[str]:
    if not _has_window(fields):
        return [FULL] * layers
    first = whole("max_window_layers", fields.raw("max_window_layers", layers), minimum=0)
    return [WINDOW if layer >= first else FULL for layer in range(layers)]


def _odd_below(fields: Fields, layers: int) -> list[str]:
    last = whole("max_window_layers", fields.raw("max_window_layers"), minimum=0)
    return [WINDOW if (layer + 1) % 2 and layer < last else FULL for layer in range(layers)]


_INTERVALS = (
    "sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval",
    "global_attn_every_n_layers",
)


def _interval(fields: Fields) -> int | str:
    """The n of "every n-th layer", under the names the families give it, or the class's own."""
    for name in _INTERVALS:
        if fields.has(name):
            value = fields.raw(name)
            return value if isinstance(value, str) else whole(name, value)
    return fields.rule("full_every")


def _full_every(fields: Fields, layers: int) -> list[str]:
    interval = _interval(fields)
    if fields.optional_size("window") is None and fields.given("window"):
        return [FULL] * layers
    if isinstance(interval, str):
        letters = {"L": WINDOW, "G": FULL}
        if not interval or set(interval) - set(letters):
            raise ConfigError(f"sliding_window_pattern: got {interval!r}, expected a number or letters L, G")
        return [letters[interval[layer % len(interval)]] for layer in range(layers)]
    return [WINDOW if (layer + 1) % interval else FULL for layer in range(layers)]


def _full_every_and_last(fields: Fields, layers: int) -> list[str]:
    return [*_full_every(fields, layers)[:-1], FULL]


def _full_first_of(fields: Fields, layers: int) -> list[str]:
    return [WINDOW if layer % fields.rule("full_every") else FULL for layer in range(layers)]


def _full_every_else_state(fields: Fields, layers: int) -> list[str]:
    interval = whole("full_attention_interval", _interval(fields))
    return [STATE if (layer + 1) % interval else FULL for layer in range(layers)]


def _chunked(fields: Fields, layers: int) -> list[str]:
    interval = fields.number("no_rope_layer_interval")
    has_rope = fields.listed("no_rope_layers") or [(layer + 1) % interval != 0 for layer in range(layers)]
    if len(has_rope) != layers:
        raise ConfigError(f"no_rope_layers: got {len(has_rope)} entries, expected {layers}")
    if fields.raw("attention_chunk_size") is None:
        return [FULL] * layers
    return [CHUNK if rope else FULL for rope in has_rope]


def _mimo_v2(fields: Fields, layers: int) -> list[str]:
    pattern = fields.listed("hybrid_layer_pattern")
    if pattern is None:
        pattern = [0 if layer == 0 or (layer + 1) % 6 == 0 else 1 for layer in range(layers)]
    if len(pattern) != layers:
        raise ConfigError(f"hybrid_layer_pattern: got {len(pattern)} entries, expected {layers}")
    return [WINDOW if whole("hybrid_layer_pattern", windowed, minimum=0) else FULL for windowed in pattern]


def _gpt_neo(fields: Fields, layers: int) -> list[str]:
    words = fields.listed("attention_layers")
    if words is None:
        blocks = fields.listed("attention_types") or [[["global", "local"], layers // 2]]
        words = [word for block in blocks for word in _repeated(block)]
    fields.ignore("attention_types")
    if len(words) != layers:
        raise ConfigError(f"attention_layers: got {len(words)} entries, expected {layers}")
    return [_kind("attention_layers", word) for word in words]


def _repeated(block: object) -> list:
    """One entry of GPT-Neo's attention_types: [pattern, times]."""
    if not isinstance(block, (list, tuple)) or len(block) != 2 or not isinstance(block[0], (list, tuple)):
        raise ConfigError(f"attention_types: got {block!r}, expected pairs of a pattern and its repeats")
    return list(block[0]) * min(whole("attention_types", block[1]), MAX_LAYERS)


def _attn_layer_period(fields: Fields, layers: int) -> list[str]:
    period = fields.number("attn_layer_period")
    offset = whole("attn_layer_offset", fields.raw("attn_layer_offset"), minimum=0)
    return [FULL if layer % period == offset else STATE for layer in range(layers)]


def _zamba(fields: Fields, layers: int) -> list[str]:
    attention = _attn_layer_period(fields, max(0, layers - 3))
    return [STATE, STATE, BOTH, *(BOTH if kind == FULL else STATE for kind in attention)][:layers]


def _indices(fields: Fields, name: str, layers: int, default: list[int]) -> set[int]:
    """A field that lists layer numbers."""
    listed = fields.listed(name)
    numbers = {whole(name, number, minimum=0) for number in (default if listed is None else listed)}
    if numbers and max(numbers) >= layers:
        raise ConfigError(f"{name}: got layer {max(numbers)}, expected numbers below {layers}")
    return numbers


def _attn_layer_indices(fields: Fields, layers: int) -> list[str]:
    attention = _indices(fields, "attn_layer_indices", layers, [])
    return [FULL if layer in attention else STATE for layer in range(layers)]


def _full_attn_idxs(fields: Fields, layers: int) -> list[str]:
    attention = _indices(fields, "full_attn_idxs", layers, list(range(layers)))
    return [FULL if layer in attention else STATE for layer in range(layers)]


def _hybrid_layer_ids(fields: Fields, layers: int) -> list[str]:
    # The layers of Zamba2-2.7B, which is what the class defaults describe.
    shared = _indices(fields, "hybrid_layer_ids", layers, [6, 12, 18, 24, 30, 36, 42, 47, 51])
    return [BOTH if layer in shared else STATE for layer in range(layers)]


def _kimi_linear(fields: Fields, layers: int) -> list[str]:
    linear = fields.nested("linear_attn_config")
    attention = linear.listed("full_attn_layers")
    if attention is None:
        return [FULL if layer and layer % 4 == 0 else STATE for layer in range(layers)]
    numbers = {whole("full_attn_layers", number) for number in attention}      # counted from 1 in the file
    return [FULL if layer + 1 in numbers else STATE for layer in range(layers)]


def _block_types(fields: Fields, layers: int) -> list[str]:
    fields.ignore("_block_types")
    words = fields.listed("block_types") or ["recurrent", "recurrent", "attention"]
    kinds = [_kind("block_types", word) for word in words]
    # This family's attention layers all have the window.
    return [WINDOW if kinds[layer % len(kinds)] == FULL else STATE for layer in range(layers)]


def _listed_only(fields: Fields, layers: int) -> list[str]:
    raise fields.missing("layer_types")


PATTERNS = {
    "full": _full,
    "all_windowed": _all_windowed,
    "windowed_from": _windowed_from,
    "odd_below": _odd_below,
    "full_every": _full_every,
    "full_every_and_last": _full_every_and_last,
    "full_first_of": _full_first_of,
    "full_every_else_state": _full_every_else_state,
    "two_per_layer": lambda fields, layers: [FULL] * (2 * layers),
    "all_state": lambda fields, layers: [STATE] * layers,
    "all_both": lambda fields, layers: [BOTH] * layers,
    "chunked": _chunked,
    "mimo_v2": _mimo_v2,
    "gpt_neo": _gpt_neo,
    "attn_layer_period": _attn_layer_period,
    "zamba": _zamba,
    "attn_layer_indices": _attn_layer_indices,
    "full_attn_idxs": _full_attn_idxs,
    "hybrid_layer_ids": _hybrid_layer_ids,
    "kimi_linear": _kimi_linear,
    "block_types": _block_types,
    "listed_only": _listed_only,
}
