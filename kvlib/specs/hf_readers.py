"""How each kind of family says how much it caches: one reader per kind, from fields to a KvShape."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.hf_families import Family
from kvlib.specs.hf_fields import Fields
from kvlib.specs.hf_layers import BOTH, FULL, NOTHING, STATE, layer_count, layer_kinds, window_of
from kvlib.specs.hf_states import states
from kvlib.specs.shape import KvShape, LayerGroup, StateTensor


def _heads_and_dim(fields: Fields) -> tuple[int, int]:
    """KV heads and head size of an ordinary attention layer.

    Raises
    ------
    ConfigError
        When the KV heads do not divide the heads, or the head size is neither given nor hidden size / heads.
    """
    heads = fields.size("heads")
    kv_heads = fields.optional_size("kv_heads")
    if kv_heads is None:
        kv_heads = heads
        if not fields.rule("mha"):
            fields.assume("kv_heads")
    if heads % kv_heads:
        raise ConfigError(f"num_key_value_heads: got {kv_heads}, expected a divisor of the {heads} heads")
    return kv_heads, _head_dim(fields, heads)


def _head_dim(fields: Fields, heads: int) -> int:
    head_dim = fields.optional_size("head_dim")
    if head_dim is not None:
        return head_dim
    hidden = fields.size("hidden")
    if hidden % heads:
        raise ConfigError(f"head_dim: missing, expected it as {hidden} is no multiple of {heads} heads")
    return hidden // heads


def _shape(
    fields: Fields,
    family: Family,
    kinds: list[str],
    geometry: Callable[[str], tuple[int, int]],
    latent: bool = False,
) -> KvShape:
    """Gather like layers; `geometry` gives KV heads and elements per head for a kind of attention layer."""
    counts: Counter = Counter()
    for kind in kinds:
        if kind not in (STATE, NOTHING):
            attention = FULL if kind == BOTH else kind
            counts[geometry(attention), window_of(fields, attention)] += 1
    recurrent = sum(kind in (STATE, BOTH) for kind in kinds)
    if recurrent and family.state is None:
        raise ConfigError(f"layer_types: got recurrent layers, expected none in {fields.family_name!r}")
    # Sized even when no layer is recurrent, as in dense Granite 4, so that the fields count as read.
    tensors = states(family.state, fields, max(1, recurrent)) if family.state else ()
    return KvShape(
        groups=tuple(
            LayerGroup(layers, kv_heads, elements, window, latent)
            for ((kv_heads, elements), window), layers in counts.items()
        ),
        states=tensors if recurrent else (),
    )


def _plain(fields: Fields, family: Family) -> KvShape:
    """Attention layers with one head geometry: 2 * head_dim numbers per KV head."""
    kinds = layer_kinds(fields, family)
    if set(kinds) <= {STATE, NOTHING}:
        fields.ignore(*(f for q in ("heads", "kv_heads", "head_dim") for f in fields.spellings(q)))
        return _shape(fields, family, kinds, lambda kind: (0, 0))
    kv_heads, head_dim = _heads_and_dim(fields)
    return _shape(fields, family, _cross_layer_shared(fields, kinds), lambda kind: (kv_heads, 2 * head_dim))


def _cross_layer_shared(fields: Fields, kinds: list[str]) -> list[str]:
    """Hunyuan-Large: neighboring layers share one cache (arXiv 2411.02265, cross-layer attention)."""
    if not fields.flag("use_cla", False):
        fields.ignore("cla_share_factor")
        return kinds
    return kinds[:: fields.number("cla_share_factor")]


def _mla(fields: Fields, family: Family) -> KvShape:
    """One latent and one shared rotary key per layer and token; an indexer's keys counted apart."""
    if not fields.flag("use_mla", True):
        return _plain(fields, family)
    kinds = layer_kinds(fields, family)
    width = fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim")
    fields.ignore(*fields.spellings("kv_heads"), *fields.spellings("head_dim"))
    shape = _shape(fields, family, kinds, lambda kind: (1, width), latent=True)
    if fields.raw("index_head_dim") is None:
        return shape
    roles = fields.listed("indexer_types") or ["full"] * len(kinds)
    if any(role not in ("full", "shared") for role in roles) or len(roles) != len(kinds):
        raise ConfigError(f"indexer_types: got {roles!r}, expected {len(kinds)} of 'full' or 'shared'")
    # A "shared" layer takes the choice of the layer before and keeps no keys to choose by.
    return replace(shape, index_elements_per_token=roles.count("full") * fields.number("index_head_dim"))


def _falcon(fields: Fields, family: Family) -> KvShape:
    """Falcon's flags decide: one KV head for multi_query, unless it is the new decoder architecture."""
    # The first files of Falcon-40B say n_head_kv instead of naming the architecture.
    new_architecture = fields.flag("new_decoder_architecture", fields.has("n_head_kv"))
    multi_query = fields.flag("multi_query", True)
    heads = fields.size("heads")
    listed = fields.optional_size("kv_heads") or heads
    kv_heads = 1 if multi_query and not new_architecture else listed
    head_dim = _head_dim(fields, heads)
    return _shape(fields, family, [FULL] * layer_count(fields), lambda kind: (kv_heads, 2 * head_dim))


def _multi_query(fields: Fields, family: Family) -> KvShape:
    """GPT-BigCode (StarCoder): one KV head, or all of them."""
    heads = fields.size("heads")
    kv_heads = 1 if fields.flag("multi_query", True) else heads
    fields.ignore(*fields.spellings("kv_heads"))
    head_dim = _head_dim(fields, heads)
    return _shape(fields, family, [FULL] * layer_count(fields), lambda kind: (kv_heads, 2 * head_dim))


def _chatglm(fields: Fields, family: Family) -> KvShape:
    """ChatGLM: multi_query_attention means multi_query_group_num KV heads, not one."""
    heads = fields.size("heads")
    grouped = fields.flag("multi_query_attention", False)
    kv_heads = fields.number("multi_query_group_num") if grouped else heads
    head_dim = _head_dim(fields, heads)
    return _shape(fields, family, [FULL] * layer_count(fields), lambda kind: (kv_heads, 2 * head_dim))


def _attn_config(fields: Fields, family: Family) -> KvShape:
    """DBRX and MPT: the KV heads are in attn_config."""
    attention = fields.nested("attn_config")
    heads = fields.size("heads")
    if attention.has("kv_n_heads"):
        kv_heads = attention.number("kv_n_heads")
    else:
        # DBRX's class default is one KV head; MPT's attn_type says one ("multiquery_attention") or all.
        is_one = fields.family_name == "dbrx" or attention.raw("attn_type") == "multiquery_attention"
        kv_heads = 1 if is_one else heads
    fields.ignore(*fields.spellings("kv_heads"))
    head_dim = _head_dim(fields, heads)
    return _shape(fields, family, [FULL] * layer_count(fields), lambda kind: (kv_heads, 2 * head_dim))


def _gemma4(fields: Fields, family: Family) -> KvShape:
    """Gemma 4: full-attention layers have KV heads and a head size of their own."""
    kinds = layer_kinds(fields, family)
    kv_heads, head_dim = _heads_and_dim(fields)
    full_heads, full_dim = kv_heads, fields.number("global_head_dim")
    own_heads = fields.raw("num_global_key_value_heads")
    # attention_k_eq_v turns the separate KV heads on; gemma4_unified has no such switch.
    if own_heads is not None and fields.flag("attention_k_eq_v", fields.family_name == "gemma4_unified_text"):
        full_heads = fields.number("num_global_key_value_heads")
    full, windowed = (full_heads, 2 * full_dim), (kv_heads, 2 * head_dim)
    return _shape(fields, family, kinds, lambda kind: full if kind == FULL else windowed)


def _mimo_v2(fields: Fields, family: Family) -> KvShape:
    """MiMo-V2: keys and values differ in size, and windowed layers have twice the KV heads."""
    kinds = layer_kinds(fields, family)
    kv_heads, key_dim = _heads_and_dim(fields)
    value_dim = fields.number("v_head_dim")
    own_heads = fields.has("swa_num_key_value_heads")
    windowed_heads = fields.number("swa_num_key_value_heads") if own_heads else 2 * kv_heads
    for name, same in (("swa_head_dim", key_dim), ("swa_v_head_dim", value_dim)):
        if fields.has(name) and fields.number(name) != same:
            raise ConfigError(f"{name}: got {fields.raw(name)!r}, expected {same} as in the other layers")
    fields.ignore("attention_chunk_size", "sliding_window_size", "swa_num_attention_heads")
    full, windowed = (kv_heads, key_dim + value_dim), (windowed_heads, key_dim + value_dim)
    return _shape(fields, family, kinds, lambda kind: full if kind == FULL else windowed)


def _zamba(fields: Fields, family: Family) -> KvShape:
    """Zamba: the shared attention block is twice as wide as the model; each use of it has its own cache."""
    kinds = layer_kinds(fields, family)
    heads = fields.size("heads")
    kv_heads = fields.optional_size("kv_heads") or heads
    head_dim = fields.optional_size("head_dim") or 2 * fields.size("hidden") // heads
    fields.ignore("attention_hidden_size", "kv_channels")
    return _shape(fields, family, kinds, lambda kind: (kv_heads, 2 * head_dim))


def _block_configs(fields: Fields, family: Family) -> KvShape:
    """Nemotron-NAS and DeciLM: each block has its own attention, or none."""
    heads = fields.size("heads")
    head_dim = _head_dim(fields, heads)
    fields.ignore(*fields.spellings("kv_heads"))
    blocks = fields.listed("block_configs")
    per_layer = fields.listed("num_key_value_heads_per_layer")
    if blocks is None and per_layer is None:
        raise fields.missing("block_configs")
    counts = per_layer if blocks is None else [_block_heads(block, heads) for block in blocks]
    _one_for_each_layer("block_configs", counts, fields)
    return _per_layer_shape(counts if blocks is None else [count for count in counts if count], head_dim)


def _block_heads(block: object, heads: int) -> int:
    """KV heads of one entry of block_configs; 0 where attention is removed or replaced."""
    if not isinstance(block, Mapping) or not isinstance(block.get("attention"), Mapping):
        raise ConfigError(f"block_configs: got {block!r}, expected objects with an 'attention' object")
    attention = Fields("block_configs", block["attention"], {}, {})
    if attention.flag("no_op", False) or attention.flag("replace_with_linear", False):
        return 0
    if attention.raw("window_length") is not None:
        raise ConfigError(f"window_length: got {attention.raw('window_length')!r}, expected null")
    group = attention.number("n_heads_in_group")
    if heads % group:
        raise ConfigError(f"n_heads_in_group: got {group}, expected a divisor of the {heads} attention heads")
    return heads // group


def _heads_per_layer(fields: Fields, family: Family) -> KvShape:
    """OpenELM: a list with the KV heads of every layer."""
    counts = fields.listed("num_kv_heads")
    if counts is None:
        raise fields.missing("num_kv_heads")
    _one_for_each_layer("num_kv_heads", counts, fields)
    return _per_layer_shape(counts, fields.size("head_dim"))


def _one_for_each_layer(name: str, entries: list, fields: Fields) -> None:
    if len(entries) != fields.size("layers"):
        raise ConfigError(f"{name}: got {len(entries)} entries, expected {fields.size('layers')} layers")


def _per_layer_shape(kv_heads: list, head_dim: int) -> KvShape:
    groups = Counter(whole("KV heads of a layer", heads) for heads in kv_heads)
    return KvShape(tuple(LayerGroup(layers, heads, 2 * head_dim) for heads, layers in groups.items()))


def _encoder_decoder(fields: Fields, family: Family) -> KvShape:
    """T5 and BART: self-attention per decoder token, and as much again once per encoder token."""
    # T5's decoder is as deep as its encoder unless the file says otherwise.
    layers = fields.optional_size("layers") or fields.number("num_layers")
    kv_heads, head_dim = _heads_and_dim(fields)
    fields.ignore("attention_window", "attention_type", "encoder_attention_type")       # of the encoder only
    group = LayerGroup(layers, kv_heads, 2 * head_dim)
    return KvShape((group,), cross_groups=(group,))


def _whisper(fields: Fields, family: Family) -> KvShape:
    """Whisper: the encoder always yields max_source_positions frames, so cross-attention is a fixed state."""
    shape = _encoder_decoder(fields, family)
    group = shape.groups[0]
    frames = fields.number("max_source_positions")
    cross = StateTensor("cross-attention", group.layers, group.kv_heads, group.elements_per_head * frames)
    return KvShape(shape.groups, (cross,))


def _mllama(fields: Fields, family: Family) -> KvShape:
    """Llama 3.2 Vision: some of the layers attend to the image only, and cache its tokens, not the text's."""
    layers = fields.size("layers")
    listed = fields.listed("cross_attention_layers") or ()
    cross = len({whole("cross_attention_layers", layer, minimum=0) for layer in listed})
    kv_heads, head_dim = _heads_and_dim(fields)
    if cross >= layers:
        raise ConfigError(f"cross_attention_layers: got {cross}, expected fewer than {layers} layers")
    cross_groups = (LayerGroup(cross, kv_heads, 2 * head_dim),) if cross else ()
    return KvShape((LayerGroup(layers - cross, kv_heads, 2 * head_dim),), cross_groups=cross_groups)


READERS = {
    "plain": _plain,
    "mla": _mla,
    "falcon": _falcon,
    "multi_query": _multi_query,
    "chatglm": _chatglm,
    "attn_config": _attn_config,
    "gemma4": _gemma4,
    "mimo_v2": _mimo_v2,
    "zamba": _zamba,
    "block_configs": _block_configs,
    "heads_per_layer": _heads_per_layer,
    "encoder_decoder": _encoder_decoder,
    "whisper": _whisper,
    "mllama": _mllama,
}
