"""From a Hugging Face config to a KvShape: find the language model, know its family, read every layer.

The way through: ``hf_file`` reads the file, `find_text_config` finds the language model inside it, the
families table (``hf_families``, ``hf_families_other``) gives class defaults and rules, ``hf_layers`` says
what each layer is, ``hf_states`` how big a recurrent one is, and a reader of ``hf_readers`` turns that into
groups. What is not known is an error, never a guess.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvlib.errors import ConfigError
from kvlib.specs.hf_families import Family
from kvlib.specs.hf_families_other import ALIASES, ENCODER_ONLY, FAMILIES, WRAPPERS
from kvlib.specs.hf_fields import Fields
from kvlib.specs.hf_file import load_config
from kvlib.specs.hf_readers import READERS
from kvlib.specs.shape import KvShape

# Where wrappers keep their language model. Vision and audio parts go by other names and are never looked at.
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")


def read_shape(config) -> KvShape:
    """The KV shape of a config; ``KvShape.from_hf_config`` is the public name.

    Examples
    --------
    >>> shape = read_shape({"model_type": "mistral", "num_hidden_layers": 32, "head_dim": 128})
    >>> shape.groups[0].window, shape.assumed_fields
    (4096, ('sliding_window', 'num_attention_heads', 'num_key_value_heads'))
    """
    family_name, text, dtype = find_text_config(load_config(config))
    fields, family = family_fields(family_name, text)
    shape = READERS[family.reader](fields, family)
    fields.refuse_unread()
    return replace(shape, dtype=dtype, assumed_fields=fields.assumed)


def family_fields(family_name: str, text: Mapping) -> tuple[Fields, Family]:
    """The fields of a text config, with the defaults and names of its family."""
    family = FAMILIES[family_name]
    return Fields(family_name, text, family.defaults, family.names), family


def find_text_config(config: Mapping) -> tuple[str, Mapping, str | None]:
    """Walk down to the language model: its family, its own config, and the dtype named on the way.

    Raises
    ------
    ConfigError
        For a family that is not known, or that has no KV cache (encoders).

    Examples
    --------
    >>> find_text_config({"model_type": "llava", "text_config": {"hidden_size": 4096}})
    ('llama', {'hidden_size': 4096}, None)
    """
    model_type, dtype = config.get("model_type"), None
    while True:
        dtype = _dtype(config) or dtype
        family_name = ALIASES.get(model_type, model_type) if isinstance(model_type, str) else None
        inner_keys = [key for key in _TEXT_KEYS if isinstance(config.get(key), Mapping)]
        if family_name in FAMILIES and not inner_keys:
            return family_name, config, dtype
        if family_name in FAMILIES:
            raise ConfigError(f"{inner_keys[0]}: got an object, expected none in model_type {model_type!r}")
        if family_name not in WRAPPERS and not (model_type is None and inner_keys):
            raise _unknown_family(model_type, config)
        if len(inner_keys) > 1:
            raise ConfigError(f"{', '.join(inner_keys)}: got several language models, expected one")
        inner_type = WRAPPERS.get(family_name)
        if inner_keys:
            config = config[inner_keys[0]]
            model_type = config.get("model_type", inner_type)
        elif "num_hidden_layers" in config or "num_attention_heads" in config:
            model_type = inner_type         # old files (Qwen2-VL) keep the language model's fields at the top
        else:
            raise ConfigError(f"text_config: missing, expected the language model of {model_type!r}")


def _dtype(config: Mapping) -> str | None:
    name = config.get("dtype") or config.get("torch_dtype")
    return name if isinstance(name, str) and name != "auto" else None


def _unknown_family(model_type: object, config: Mapping) -> ConfigError:
    if isinstance(model_type, str) and model_type in ENCODER_ONLY:
        return ConfigError(
            f"model_type: got {model_type!r}, an encoder that reads everything at once and has no KV cache, "
            "expected a model that generates text"
        )
    if model_type is None:
        return ConfigError("model_type: missing, expected the name of a model family such as 'llama'")
    needed = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    missing = ", ".join(name for name in needed if name not in config)
    without = f"; {missing}: missing, and an unknown family has no defaults" if missing else ""
    return ConfigError(f"model_type: got {model_type!r}, expected a known family such as 'llama'{without}")
