"""Check a computed size against what vLLM printed at start-up."""

import re
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole

_NUMBER = r"([\d,]*\d)"
_TOKENS = re.compile(rf"GPU KV cache size: {_NUMBER} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: ([\d,]*\d(?:\.\d+)?)x")
# "GPU", or the name of the platform: vLLM 0.7 wrote "CUDA", its V0 engine from 0.8 on "cuda".
_BLOCKS = re.compile(rf"# (?:GPU|CUDA) blocks: {_NUMBER}", re.IGNORECASE)


@dataclass(frozen=True)
class EngineLog:
    """What the log says, and whether its two lines agree.

    Attributes
    ----------
    cache_tokens : int or None
        From "GPU KV cache size", or blocks times block size from the old form.
    request_tokens : int or None
        Length of request that the concurrency is for.
    concurrency : float or None
    agrees : bool or None
        cache_tokens equals concurrency * request_tokens up to the rounding of the printed concurrency.
        None when only one of the two lines is there.
    """

    cache_tokens: int | None
    request_tokens: int | None
    concurrency: float | None
    agrees: bool | None

    @property
    def tokens(self) -> float:
        """Tokens of KV that can be held: the concurrency line where there is one.

        For models that mix kinds of layers, older vLLM printed a cache size in another unit; the concurrency
        divides bytes available by bytes needed, so it is right for every model.
        Source: vllm-project/vllm#40691.
        """
        if self.concurrency is not None and not self.agrees:
            return self.concurrency * self.request_tokens
        return self.cache_tokens


def parse_engine_log(text: str, block_size: int = 16) -> EngineLog:
    """Read vLLM's KV-cache lines out of a start-up log (the last ones, if it started more than once).

    Parameters
    ----------
    text : str
    block_size : int
        Tokens per block, for the old "# GPU blocks: N" line.

    Raises
    ------
    ConfigError
        When none of the lines is there.

    Examples
    --------
    >>> log = parse_engine_log("INFO 05-01 [kv_cache_utils.py:634] GPU KV cache size: 290,864 tokens\\n"
    ...     "INFO 05-01 Maximum concurrency for 32,768 tokens per request: 33.04x")
    >>> log.agrees, round(log.tokens)
    (False, 1082655)
    """
    if not isinstance(text, str):
        raise ConfigError(f"text: got {type(text).__name__}, expected the log as a string")
    whole("block_size", block_size)
    tokens, blocks, concurrency = (_last(pattern, text) for pattern in (_TOKENS, _BLOCKS, _CONCURRENCY))
    if tokens is not None:
        cache_tokens = _int("GPU KV cache size", tokens[1])
    else:
        cache_tokens = None if blocks is None else _int("# GPU blocks", blocks[1]) * block_size
    if concurrency is None:
        if cache_tokens is None:
            raise ConfigError(
                "text: no KV cache line found, expected 'GPU KV cache size: N tokens', "
                "'Maximum concurrency for L tokens per request: Cx' or '# GPU blocks: N'"
            )
        return EngineLog(cache_tokens, None, None, None)
    request_tokens = whole("tokens per request", _int("tokens per request", concurrency[1]))
    printed = concurrency[2].replace(",", "")
    real("concurrency", float(printed))
    agrees = None if cache_tokens is None else _agree(cache_tokens, request_tokens, printed)
    return EngineLog(cache_tokens, request_tokens, float(printed), agrees)


def _last(pattern: re.Pattern, text: str) -> re.Match | None:
    return max(pattern.finditer(text), key=re.Match.start, default=None)


def _int(field: str, digits: str) -> int:
    real(field, float(digits.replace(",", "")))  # beyond the largest float nothing can be compared
    return int(digits.replace(",", ""))


def _agree(cache_tokens: int, request_tokens: int, printed: str) -> bool:
    """Whether the ratio is the printed number, to one unit of its last place, be it rounded or cut."""
    last_place = 10.0 ** -len(printed.partition(".")[2])
    return abs(cache_tokens / request_tokens - float(printed)) < last_place
