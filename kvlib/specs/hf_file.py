"""Read a ``config.json`` defensively: what a reader drops in is often not what its name says."""

import json
import os
from collections.abc import Mapping

from kvlib.errors import ConfigError

# The largest published config files (long lists of per-layer settings) are well under 1 MB.
MAX_BYTES = 4_000_000


def load_config(config: "Mapping | str | os.PathLike") -> Mapping:
    """Return the config as a mapping, reading it from disk if a path is given.

    Raises
    ------
    ConfigError
        For anything but a mapping or the path of a JSON object: an empty, huge, truncated or missing file,
        a Git LFS pointer, a web page, a list, a key that occurs twice, NaN or infinity.

    Examples
    --------
    >>> load_config({"model_type": "llama"})
    {'model_type': 'llama'}
    >>> parse_config("[1, 2]")
    Traceback (most recent call last):
    kvlib.errors.ConfigError: config.json: got a JSON list, expected a JSON object
    """
    if isinstance(config, Mapping):
        return config
    if not isinstance(config, (str, os.PathLike)):
        raise ConfigError(f"config: got {type(config).__name__}, expected a mapping or the path of a file")
    path = os.fspath(config)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:          # ValueError: a path with a null byte
        raise ConfigError(f"config: got {path!r}, expected the path of a config.json ({error})") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: got more than {MAX_BYTES} bytes, expected a config.json")
    try:
        return parse_config(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: got a binary file, expected JSON text") from None


def parse_config(text: str, name: str = "config.json") -> dict:
    """Parse the text of a config file; `name` is used in messages. Raises ConfigError as `load_config`."""
    start = text.lstrip()[:200]
    if not start:
        raise ConfigError(f"{name}: got an empty file, expected a JSON object")
    if start.startswith("version https://git-lfs"):
        raise ConfigError(f"{name}: got a Git LFS pointer, expected JSON; 'git lfs pull' fetches the file")
    if start.startswith("<"):
        raise ConfigError(f"{name}: got a web page (HTML), expected JSON; use the raw download link")
    try:
        parsed = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except ConfigError:
        raise
    except ValueError as error:                     # JSONDecodeError, or a number of thousands of digits
        raise ConfigError(f"{name}: got invalid JSON ({error}), expected a JSON object") from None
    except RecursionError:
        raise ConfigError(f"{name}: got JSON nested too deeply, expected a model config") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{name}: got a JSON {type(parsed).__name__}, expected a JSON object")
    return parsed


def _unique_keys(pairs: list[tuple[str, object]]) -> dict:
    result = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError(f"{key}: got two values, {result[key]!r} and {value!r}, expected each key once")
        result[key] = value
    return result


def _refuse_constant(name: str) -> None:
    raise ConfigError(f"config.json: got {name}, expected finite numbers")
