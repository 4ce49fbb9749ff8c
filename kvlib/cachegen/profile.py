"""What sender and receiver agree on beforehand: means, bins and symbol tables, learned on other contexts.

A profile belongs to one model. It is learned once, offline, from the KV of contexts that will not be sent,
and shared by all contexts that are. Source: CacheGen, section 5.2 ("offline profiling").
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from kvlib.cachegen.entropy import ALPHABET, slots_from_counts
from kvlib.cachegen.kv_input import checked_kv
from kvlib.cachegen.levels import LEVELS, PAPER, Recipe, layer_group, level_index
from kvlib.cachegen.quantize import (
    ESCAPE,
    ZERO,
    anchor_places,
    quantize_rows,
    reference,
    restore_rows,
    to_symbols,
)
from kvlib.errors import ConfigError, DecodeError

# What a symbol that was seen once weighs against one that was never seen but might be.
WEIGHT = 64
ARRAYS = ("means", "deviations", "anchor_slots", "slots")


@dataclass(frozen=True, eq=False)
class Profile:
    """What the codec knows about a model before it sees a context.

    Parameters
    ----------
    recipe : Recipe
        Which ingredients the codec uses.
    means : float32 array [planes, channels]
        Mean of each channel; a plane is the K (even) or V (odd) of one layer.
    deviations : float64 array [planes]
        Standard deviation of what is left after prediction; bins are multiples of it.
    anchor_slots : uint16 array [channels, planes, alphabet]
        rANS tables of the anchors.
    slots : uint16 array [levels, channels, planes, alphabet]
        rANS tables of the differences, one set for each level.

    Examples
    --------
    >>> profile = learn_profile([np.random.default_rng(0).normal(size=(4, 2, 50, 8))])
    >>> profile.means.shape         # K and V of four layers, eight channels
    (8, 8)
    """

    recipe: Recipe
    means: np.ndarray
    deviations: np.ndarray
    anchor_slots: np.ndarray
    slots: np.ndarray

    @property
    def layers(self) -> int:
        return len(self.deviations) // 2

    @property
    def channels(self) -> int:
        return self.means.shape[1]

    def bins(self, level: int) -> np.ndarray:
        """Bin width of each plane: level × width of its third of the layers × its deviation."""
        widths = [
            self.recipe.widths[layer_group(plane // 2, self.layers)] for plane in range(2 * self.layers)
        ]
        return LEVELS[level_index(level)].bin_scale * np.array(widths) * self.deviations

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that tell this profile from any other; each stream carries them."""
        state = hashlib.sha256(json.dumps(asdict(self.recipe), sort_keys=True).encode())
        for name in ARRAYS:
            array = np.ascontiguousarray(getattr(self, name))
            state.update(
                f"{name}{array.shape}".encode() + array.astype(array.dtype.newbyteorder("<")).tobytes()
            )
        return state.digest()[:8]

    def save(self, path) -> None:
        """Write a compressed ``.npz`` without pickles, with the digest inside."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        header = json.dumps({"recipe": asdict(self.recipe), "digest": self.digest.hex()})
        with open(path, "wb") as file:
            np.savez_compressed(file, header=np.frombuffer(header.encode(), np.uint8), **arrays)

    @classmethod
    def load(cls, path) -> "Profile":
        """Read what `save` wrote.

        Raises
        ------
        DecodeError
            When the file is not a profile, is damaged, or its digest does not match.
        """
        try:
            with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as file:
                header = json.loads(file["header"].tobytes())
                recipe = Recipe(**{**header["recipe"], "widths": tuple(header["recipe"]["widths"])})
                arrays = {name: file[name] for name in ARRAYS}
        except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile, OSError) as reason:
            raise DecodeError(f"{path}: not a CacheGen profile ({reason})") from None
        profile = cls(recipe, **arrays)
        if profile.digest.hex() != header["digest"]:
            raise DecodeError(f"{path}: the profile is damaged, its digest is not {header['digest']}")
        return profile


def learn_profile(kvs: Sequence, recipe: Recipe = PAPER) -> Profile:
    """Learn a profile from the KV of some contexts.

    Parameters
    ----------
    kvs : sequence of arrays [layers, 2, tokens, channels]
        KV of one model, one array a context. They should not be the contexts that will be sent: tables
        fitted to the very numbers they code promise a size that no new context reaches.

    Raises
    ------
    ConfigError
        When there is no context, none has a token beyond the exact ones, or shapes differ.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> profile = learn_profile([rng.normal(size=(4, 2, 50, 8)) for _ in range(3)])
    >>> profile.layers, profile.channels, profile.bins(0).shape
    (4, 8, (8,))
    """
    contexts = [checked_kv(kv)[:, recipe.exact_tokens :] for kv in kvs]
    contexts = [context for context in contexts if context.shape[1]]
    if not contexts:
        raise ConfigError(
            "kvs: no token to learn from, expected at least one context longer than the exact tokens"
        )
    shapes = {(len(context), context.shape[2]) for context in contexts}
    if len(shapes) > 1:
        raise ConfigError(f"kvs: got planes × channels {sorted(shapes)}, expected KV of one model")
    means = np.concatenate(contexts, axis=1).mean(1).astype(np.float32)
    anchors, left = zip(*(_anchors_and_rest(context, means, recipe) for context in contexts))
    profile = Profile(recipe, means, _deviations(left), np.zeros(0, np.uint16), np.zeros(0, np.uint16))
    slots = []
    for level in range(len(LEVELS)):
        bins = profile.bins(level)[:, None, None]
        slots.append(slots_from_counts(_with_neighbors(_counts([rest / bins for rest in left], recipe))))
    # An anchor has no escape, so every step it can have gets a slot.
    highest = 2 ** (recipe.anchor_bits - 1) - 1
    anchor_counts = WEIGHT * _counts(anchors, recipe)
    anchor_counts[..., ZERO - highest : ZERO + highest + 1] += 1
    return replace(profile, anchor_slots=slots_from_counts(anchor_counts), slots=np.stack(slots))


def _anchors_and_rest(
    context: np.ndarray, means: np.ndarray, recipe: Recipe
) -> tuple[np.ndarray, np.ndarray]:
    """Steps of the anchors, and what is left of the other tokens after prediction."""
    anchor_at, other_at = anchor_places(context.shape[1], recipe)
    steps, scale = quantize_rows(context[:, anchor_at], recipe.anchor_bits)
    return steps, context[:, other_at] - reference(restore_rows(steps, scale), other_at, means, recipe)


def _deviations(left: Sequence[np.ndarray]) -> np.ndarray:
    """Root of the mean square of what is left after prediction, per plane; 1 where nothing is left."""
    count = sum(rest[0].size for rest in left)
    deviations = np.sqrt(np.sum([np.square(rest).sum((1, 2)) for rest in left], axis=0) / max(count, 1))
    return np.where(deviations > 0, deviations, 1.0)


def _counts(contexts: Sequence[np.ndarray], recipe: Recipe) -> np.ndarray:
    """How often each symbol occurs, [channels, planes, alphabet], in steps [planes, tokens, channels]."""
    planes, _, channels = contexts[0].shape
    counts = np.zeros((channels, planes, ALPHABET), np.int64)
    first_cell = np.arange(channels) * ALPHABET
    for context in contexts:
        # Plane by plane, so that what is worked on stays in the processor's cache.
        for plane, steps in enumerate(context):
            cells = first_cell + to_symbols(np.rint(steps))[0]
            counts[:, plane] += np.bincount(cells.ravel(), minlength=channels * ALPHABET).reshape(
                channels, ALPHABET
            )
    if recipe.tables != "layer_channel":
        counts[:] = counts.sum(0)
    if recipe.tables == "global":
        counts[:] = counts.sum(1, keepdims=True)
    return counts


def _with_neighbors(counts: np.ndarray) -> np.ndarray:
    """Let the symbols between and next to those seen, and the escape, occur too."""
    seen = counts[..., :ESCAPE] > 0
    places = np.arange(ESCAPE)
    first = np.where(seen, places, ZERO).min(-1, keepdims=True) - 1
    last = np.where(seen, places, ZERO).max(-1, keepdims=True) + 1
    widened = counts * WEIGHT
    widened[..., :ESCAPE] += (places >= first) & (places <= last)
    widened[..., ESCAPE] += 1
    return widened
