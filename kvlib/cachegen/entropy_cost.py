"""What the lanes of the entropy coder cost, by arithmetic (the coder itself needs numpy, this does not)."""

from kvlib.specs.checks import whole

STATE_BITS = 32


def lane_bits(lane_tokens: int, channels: int) -> float:
    """Bits per number that the lanes' final states add to a stream.

    A lane codes `lane_tokens` × `channels` numbers and leaves one 32-bit state. This is an upper bound: up
    to 16 of those bits carry symbols that would otherwise have been spilled as a word.

    Examples
    --------
    >>> round(lane_bits(10, 192), 4), round(lane_bits(1, 192), 3)
    (0.0167, 0.167)
    """
    return STATE_BITS / (whole("lane_tokens", lane_tokens) * whole("channels", channels))
