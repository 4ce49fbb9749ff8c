"""Look a quantity up in a config under its several names, and remember what was looked at.

What was *not* looked at matters as much: a field that sounds like cache geometry and that no rule of the
family read may change the answer, so it is an error and not something to pass over in silence.
"""

import re
from collections.abc import Mapping

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole

# The names one quantity goes by. Families with names of their own override these.
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "window": ("sliding_window",),
    "ssm_heads": ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"),
    "ssm_head_dim": ("mamba_d_head", "mamba_head_dim", "mamba_headdim"),
    "ssm_groups": ("mamba_n_groups", "n_groups", "mamba_ngroups"),
    "ssm_state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "ssm_conv": ("mamba_d_conv", "conv_kernel"),
    "ssm_expand": ("mamba_expand", "expand"),
}

# A name with one of these in it may describe what is cached.
_SUSPICIOUS = re.compile(
    r"(^|_)kv(_|$)|key_value|kv_channels|latent_dim|compress|cla_|yoco|head_dim|head_size|dim_head|chunk"
    r"|window|sliding|swa_|layer_types|layer_pattern|block_type|block_config|attention_pattern|attn_type"
    r"|attention_type|attention_groups|cross_attention_layers|hybrid|global_attn|local_attn|attn_layer"
    r"|full_attn|full_attention|ssm|mamba|linear_(num|key|value|conv|attn)|index_head|indexer"
    r"|per_layer_config"
)
# Of those, the names that change nothing about how much is cached.
_HARMLESS = re.compile(
    # switches of the software, training and decoding extras
    r"use_cache|cache_implementation|kv_cache_(dtype|scheme)|use_mamba(_kernels|py)|.*chunk_size|mtp_.*"
    # sizes of what is computed and not kept, scales and normalizations
    r"|qk_(nope_|rope_)?head_dim|v_head_dim|chunk_size_feed_forward|mlp_layer_types|.*_dropout|.*_bias"
    r"|.*mup.*|(.*_)?rms_norm.*|layernorm_.*|ssm_(in_|out_)?multipliers?|mla_scale_.*"
    r"|full_attn_(mod|.*_factor)|linear_attn_(alpha|beta)_factor|hidden_mamba_act|indexer_rope_interleave"
    r"|rope_.*"
    r"|mamba_(inner_layernorms|use_mlp|dt_.*|hidden_act|norm_before_gate|intermediate_size)"
    # a limit that matters only where a window is switched on, and parts that are not the language model
    r"|max_window_layers|vision_.*|image_.*|video_.*|audio_.*|.*_token_(id|index)"
)


class Fields:
    """A config with the defaults of its family.

    Parameters
    ----------
    family_name : str
    config : Mapping
    defaults : Mapping
        By quantity ("layers") or by raw name ("sliding_window").
    names : Mapping
        Names of this family that override `NAMES`.

    Examples
    --------
    >>> fields = Fields("gpt2", {"n_layer": 12, "sliding_window": 7}, {"heads": 12}, {})
    >>> fields.size("layers"), fields.size("heads"), fields.assumed
    (12, 12, ('num_attention_heads',))
    >>> fields.refuse_unread()
    Traceback (most recent call last):
    kvlib.errors.ConfigError: sliding_window: got 7, expected it absent or null in model_type 'gpt2'
    """

    def __init__(self, family_name: str, config: Mapping, defaults: Mapping, names: Mapping):
        self.family_name = family_name
        self._config = config
        self._defaults = defaults
        self._names = names
        self._read: set[str] = set()
        self._assumed: dict[str, None] = {}         # in the order of reading

    @property
    def assumed(self) -> tuple[str, ...]:
        """The fields whose class default was taken because the file does not give them."""
        return tuple(self._assumed)

    def has(self, name: str) -> bool:
        """Whether the file itself gives `name` a value other than null."""
        self._read.add(name)
        return self._config.get(name) is not None

    def raw(self, name: str, default=None):
        """The value under one raw name: from the file, else the family's default, else `default`."""
        self._read.add(name)
        if name in self._config:
            return self._config[name]
        value = self._class_default(name)
        return default if value is None else value

    def rule(self, name: str):
        """What the families table says of the class itself and no file gives; None where it says nothing."""
        return self._defaults.get(name)

    def assume(self, quantity: str) -> None:
        """Note that the class stands in for a quantity, unless the file gives it (be it as null)."""
        if not self.given(quantity):
            self._assumed[self.spellings(quantity)[0]] = None

    def ignore(self, *names: str) -> None:
        """Say that these fields are understood and change nothing here."""
        self._read.update(names)

    def given(self, quantity: str) -> bool:
        """Whether the file gives the quantity under any of its names, be it as null."""
        return any(name in self._config for name in self.spellings(quantity))

    def value(self, quantity: str):
        """The quantity under whichever of its names the file uses; None if absent or null.

        Raises
        ------
        ConfigError
            When two names disagree.
        """
        found = {}
        for name in self.spellings(quantity):
            self._read.add(name)
            if self._config.get(name) is not None:
                found[name] = self._config[name]
        values = list(found.values())
        if any(other != values[0] for other in values[1:]):
            pairs = ", ".join(f"{name}={value!r}" for name, value in found.items())
            raise ConfigError(f"{next(iter(found))}: got {pairs}, expected names of one quantity to agree")
        return values[0] if values else None

    def size(self, quantity: str) -> int:
        """The quantity as a whole number >= 1, from the file or the family's class default.

        Raises
        ------
        ConfigError
            When it is null, or neither given nor known, or is not a whole number >= 1.
        """
        size = self.optional_size(quantity)
        if size is None:
            raise self.missing(quantity)
        return size

    def optional_size(self, quantity: str) -> int | None:
        """Like `size`, but None when the file says null, or says nothing and the class default is null."""
        value = self.value(quantity)
        if value is None and not self.given(quantity):
            value = self._class_default(quantity)
        return None if value is None else whole(self._name_used(quantity), value)

    def number(self, name: str) -> int:
        """A raw field that must be a whole number >= 1, from the file or the class default."""
        value = self.raw(name)
        if value is None:
            raise self.missing(name)
        return whole(name, value)

    def flag(self, name: str, default: bool) -> bool:
        """A raw field that must be true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{name}: got {value!r}, expected true or false")
        return value

    def listed(self, name: str) -> list | None:
        """A raw field that must be a list; None if absent or null."""
        value = self.raw(name)
        if value is not None and not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name}: got {value!r}, expected a list")
        return None if value is None else list(value)

    def nested(self, name: str) -> "Fields":
        """A raw field that must be an object, as fields of their own; empty if absent."""
        value = self.raw(name, {})
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name}: got {value!r}, expected an object")
        return Fields(self.family_name, value, {}, {})

    def missing(self, field: str) -> ConfigError:
        """The error for a quantity or raw field that is neither in the file nor known from the class."""
        names = " or ".join(self.spellings(field))
        return ConfigError(f"{names}: missing or null, expected it as {self.family_name!r} has no default")

    def refuse_unread(self) -> None:
        """Raise if a field that sounds like cache geometry was never read."""
        for name, value in self._config.items():
            if name in self._read or value in (None, False, [], {}) or isinstance(value, Mapping):
                continue
            if _SUSPICIOUS.search(str(name)) and not _HARMLESS.fullmatch(str(name)):
                raise ConfigError(
                    f"{name}: got {value!r}, expected it absent or null in model_type {self.family_name!r}"
                )

    def _class_default(self, quantity: str):
        """The class default, noted as assumed; None where the class has none."""
        known = (self._defaults.get(name) for name in (quantity, *self.spellings(quantity)))
        value = next((default for default in known if default is not None), None)
        if value is not None:
            self.assume(quantity)
        return value

    def spellings(self, quantity: str) -> tuple[str, ...]:
        """The names the quantity goes by in this family."""
        return self._names.get(quantity) or NAMES.get(quantity) or (quantity,)

    def _name_used(self, quantity: str) -> str:
        spellings = self.spellings(quantity)
        return next((name for name in spellings if name in self._config), spellings[0])
