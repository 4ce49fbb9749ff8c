"""Block hashes that are equal exactly when everything a block's KV depends on is equal.

The K and V of a token depend on every token before it, so a block is identified by its own tokens *and*
by its whole past: each hash takes the hash of the block before it as input (Mooncake, figure 3). What
else changes the KV, an adapter or an image, or must keep tenants apart, enters at the root of the chain.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole

# Eight bytes for each token leave no doubt where one ends and the next begins, as text would
# (1, 23 against 12, 3), and SHA-256 gives the same answer in every process and on every machine.
MAX_TOKEN = 2**64 - 1


def root_digest(extra_keys: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the 32-byte digest that stands before the first block of a sequence.

    Parameters
    ----------
    extra_keys : iterable of (str, str)
        Tagged keys, such as ``("lora", "X")``, ``("image", "sha256 of its pixels")`` or
        ``("tenant", "X")``. The tag keeps adapter X apart from tenant X; the order does not matter.

    Raises
    ------
    ConfigError
        If a key is not a pair of texts, or a tag stands twice.

    Examples
    --------
    >>> root_digest([("lora", "X")]) == root_digest([("tenant", "X")])
    False
    >>> root_digest([("lora", "X"), ("tenant", "Y")]) == root_digest([("tenant", "Y"), ("lora", "X")])
    True
    """
    if not isinstance(extra_keys, Iterable):
        raise ConfigError(f"extra_keys: got {extra_keys!r}, expected pairs like ('lora', 'X')")
    keys = [_checked_key(key) for key in extra_keys]
    if len({tag for tag, _ in keys}) != len(keys):
        raise ConfigError(f"extra_keys: got {keys!r}, expected each tag once")
    encoded = [text.encode() for key in sorted(keys) for text in key]
    # Each length stands before its text, so that no two lists of keys give the same bytes.
    return sha256(b"".join(struct.pack("<Q", len(text)) + text for text in encoded)).digest()


def block_digest(parent_digest: bytes, tokens: Sequence[int]) -> bytes:
    """Return the 32-byte digest of one full block.

    Parameters
    ----------
    parent_digest : bytes
        Digest of the block before it, or ``root_digest()`` for the first block.
    tokens : sequence of int
        The token ids of this block, each from 0 to 2**64 - 1; see :func:`checked_tokens`.

    Examples
    --------
    >>> block_digest(root_digest(), [5, 40]) == block_digest(root_digest(), [36, 39])
    False
    """
    return sha256(parent_digest + struct.pack(f"<{len(tokens)}Q", *tokens)).digest()


def block_digests(
    tokens: Iterable[int], block_size: int, extra_keys: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    """Return the chained digests of all full blocks of a sequence; a partial tail has none.

    Parameters
    ----------
    tokens : sequence of int
        Token ids.
    block_size : int
        Tokens per block.
    extra_keys : iterable of (str, str)
        Tagged keys; see :func:`root_digest`.

    Returns
    -------
    list of bytes
        ``len(tokens) // block_size`` digests of 32 bytes.

    Raises
    ------
    ConfigError
        If the block size, a token or a key is not understood.

    Examples
    --------
    One token changed in the third of five blocks: the hashes of blocks 3, 4 and 5 change.

    >>> before = block_digests(range(80), block_size=16)
    >>> after = block_digests([*range(40), 7, *range(41, 80)], block_size=16)
    >>> [number for number, (a, b) in enumerate(zip(before, after), start=1) if a != b]
    [3, 4, 5]
    """
    whole("block_size", block_size)
    tokens, digest, digests = checked_tokens(tokens), root_digest(extra_keys), []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        digest = block_digest(digest, tokens[start : start + block_size])
        digests.append(digest)
    return digests


def checked_tokens(tokens: Iterable[int]) -> tuple[int, ...]:
    """Return ``tokens`` as a tuple if every one is a token id.

    Raises
    ------
    ConfigError
        For anything but ints from 0 to 2**64 - 1: text, floats and bools included.

    Examples
    --------
    >>> checked_tokens([3, 5])
    (3, 5)
    >>> checked_tokens([3, "5"])
    Traceback (most recent call last):
    kvlib.errors.ConfigError: tokens: got '5', expected token ids from 0 to 18446744073709551615
    """
    if not isinstance(tokens, Iterable):
        raise ConfigError(f"tokens: got {tokens!r}, expected a sequence of token ids")
    tokens = tuple(tokens)
    if not _are_token_ids(tokens):
        culprit = next(token for token in tokens if type(token) is not int or not 0 <= token <= MAX_TOKEN)
        raise ConfigError(f"tokens: got {culprit!r}, expected token ids from 0 to {MAX_TOKEN}")
    return tokens


def _are_token_ids(tokens):
    """Whether all types and ranges are right, found out at C speed: prompts are long."""
    try:
        array("Q", tokens)  # eight unsigned bytes each, or an error; but it would take a bool for an int
    except (TypeError, OverflowError):
        return False
    return set(map(type, tokens)) <= {int}


def _checked_key(key):
    if type(key) is not tuple or len(key) != 2 or not all(type(part) is str for part in key):
        raise ConfigError(f"extra_keys: got {key!r}, expected pairs like ('lora', 'X')")
    return key
