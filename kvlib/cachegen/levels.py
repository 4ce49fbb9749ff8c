"""What can be set in the codec: how coarse (a level) and which ingredients (a recipe).

Source: CacheGen (Liu et al., SIGCOMM 2024), section 5.2: groups of ten tokens around an anchor, bins that
widen from shallow to deep layers, one symbol distribution per layer and channel.
"""

from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole

TABLE_GROUPS = ("layer_channel", "layer", "global")


@dataclass(frozen=True)
class Level:
    """How coarse: a residual's bin is `bin_scale` standard deviations wide in the middle layers."""

    name: str
    bin_scale: float


# Finest first, as a sender prefers them.
LEVELS = (Level("fine", 0.125), Level("good", 0.25), Level("medium", 0.5), Level("coarse", 1.0))


@dataclass(frozen=True)
class Recipe:
    """Which ingredients the codec uses.

    Parameters
    ----------
    group_tokens : int
        One token in so many is an anchor, stored by itself, and the others are stored as differences
        from it. 1 makes every token an anchor: plain uniform quantization of each token. 0 means no
        anchors: what is stored is the difference from each channel's mean, which the profile knows.
    anchor_bits : int
        Bits of an anchor's numbers before entropy coding, 2 to 8.
    exact_tokens : int
        So many tokens at the start of the context are kept at 16 bits, because attention sinks sit there.
    widths : tuple of three floats
        Relative bin width in the shallow, middle and deep third of the layers.
    tables : str
        One symbol distribution per ``"layer_channel"``, per ``"layer"`` or for all (``"global"``); keys and
        values always have their own, except in ``"global"``.
    """

    group_tokens: int = 10
    anchor_bits: int = 8
    exact_tokens: int = 0
    widths: tuple[float, float, float] = (0.5, 1.0, 1.5)
    tables: str = "layer_channel"

    def __post_init__(self):
        whole("group_tokens", self.group_tokens, minimum=0)
        if whole("exact_tokens", self.exact_tokens, minimum=0) > 65535:
            raise ConfigError(f"exact_tokens: got {self.exact_tokens}, expected at most 65,535")
        one_of("tables", self.tables, TABLE_GROUPS)
        if whole("anchor_bits", self.anchor_bits, minimum=2) > 8:
            raise ConfigError(f"anchor_bits: got {self.anchor_bits!r}, expected 2 to 8")
        if len(self.widths) != 3:
            raise ConfigError(f"widths: got {self.widths!r}, expected one width per third of the layers")
        object.__setattr__(self, "widths", tuple(real("widths", width, above=True) for width in self.widths))


PAPER = Recipe()
# The rival of chapter 14: no anchors, the channel's mean instead, and the attention sinks kept.
CENTRED = Recipe(group_tokens=0, exact_tokens=4, widths=(1.0, 1.0, 1.0))


def layer_group(layer: int, num_layers: int) -> int:
    """The third a layer lies in: 0 shallow, 1 middle, 2 deep. Every layer has one, whatever the count.

    Examples
    --------
    >>> [layer_group(layer, 7) for layer in range(7)]
    [0, 0, 0, 1, 1, 2, 2]
    >>> [layer_group(layer, 2) for layer in range(2)]
    [0, 1]
    """
    if whole("layer", layer, minimum=0) >= whole("num_layers", num_layers):
        raise ConfigError(f"layer: got {layer}, expected a layer below num_layers = {num_layers}")
    return 3 * layer // num_layers


def level_index(level: int) -> int:
    """Return `level` if it is an index into `LEVELS` (0 is the finest), else raise `ConfigError`."""
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < len(LEVELS):
        raise ConfigError(f"level: got {level!r}, expected 0 (finest) to {len(LEVELS) - 1} (coarsest)")
    return level
