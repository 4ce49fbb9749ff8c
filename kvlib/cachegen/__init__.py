"""CacheGen: a KV cache as a compact bitstream, and how to send it when the bandwidth changes.

Names are imported when first asked for: the codec needs numpy, the streaming simulator does not, and the
simulator must also start in a browser that has no numpy.
"""

from importlib import import_module

from kvlib.errors import DecodeError

_HOMES = {
    "levels": ("LEVELS", "Level", "Recipe", "PAPER", "CENTRED", "layer_group"),
    "profile": ("Profile", "learn_profile"),
    "codec": ("encode", "decode", "split"),
    "streaming": ("Context", "Chunk", "stream"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["DecodeError", *_HOME_OF]


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
