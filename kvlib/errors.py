"""The typed errors of kvlib.

Every one is a ``ValueError``, so a caller who does not care which went wrong catches one class,
and every message names the field, the value that was given and what was expected.
"""


class ConfigError(ValueError):
    """A model config, a setting or an argument is missing, impossible or not understood."""


class OutOfBlocks(ValueError):
    """The pool cannot supply the blocks that were asked for; nothing was changed."""


class UnknownSequence(ValueError):
    """The named sequence holds no blocks here (never allocated, already freed, or swapped out)."""


class TraceError(ValueError):
    """A request trace cannot be read; the message carries the file and the line number."""


class DecodeError(ValueError):
    """A compressed KV stream is damaged, truncated or of another version."""
