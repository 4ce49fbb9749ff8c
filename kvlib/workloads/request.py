"""One request: when it arrives, how long it is, and which blocks its prompt is made of."""

from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole

# Arrival times are whole microseconds; a float of seconds tells those apart up to 2**53, or 285 years.
MAX_ARRIVAL_S = 2**53 / 1e6


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a serving engine sees it.

    Parameters
    ----------
    arrival_s : float
        Arrival time in seconds from the trace's own zero, finite and not negative.
    num_input_tokens : int
        Prompt length in tokens, at least 1.
    num_output_tokens : int
        Generated tokens, at least 0 (0 finishes when prefill ends).
    block_ids : tuple of int, optional
        One identity per block of the prompt, the last block perhaps partial. Equal ids mean equal
        content *and* equal prefix. ``None`` where the trace has no prefix information.
    answered_block_ids : tuple of int, optional
        The same for prompt and answer together, where a later prompt may repeat the answer.
    num_sequences : int
        Sequences that answer the prompt, each of ``num_output_tokens``: parallel samples, or beams.
    beam_search : bool
        Whether they are beams.

    Raises
    ------
    ConfigError
        If a field is of the wrong type or out of range.

    Examples
    --------
    >>> Request(arrival_s=0.5, num_input_tokens=161, num_output_tokens=338).num_input_tokens
    161
    >>> Request(arrival_s=float("nan"), num_input_tokens=161, num_output_tokens=338)
    Traceback (most recent call last):
    kvlib.errors.ConfigError: arrival_s: got nan, expected seconds from 0 to 9.0072e+09
    """

    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] | None = None
    answered_block_ids: tuple[int, ...] | None = None
    num_sequences: int = 1
    beam_search: bool = False

    def __post_init__(self):
        if type(self.arrival_s) not in (int, float) or not 0 <= self.arrival_s <= MAX_ARRIVAL_S:
            raise ConfigError(
                f"arrival_s: got {self.arrival_s!r}, expected seconds from 0 to {MAX_ARRIVAL_S:g}"
            )
        whole("num_input_tokens", self.num_input_tokens)
        whole("num_output_tokens", self.num_output_tokens, minimum=0)
        whole("num_sequences", self.num_sequences)
        if type(self.beam_search) is not bool:
            raise ConfigError(f"beam_search: got {self.beam_search!r}, expected True or False")
        for field in ("block_ids", "answered_block_ids"):
            if getattr(self, field) is not None:
                _check_block_ids(field, getattr(self, field))


def _check_block_ids(field, block_ids):
    if type(block_ids) is not tuple:
        raise ConfigError(f"{field}: got {block_ids!r}, expected a tuple of whole numbers")
    for block_id in block_ids:
        # Floats are refused rather than converted: above 2**53 two ids would become one.
        if type(block_id) is not int or block_id < 0:
            raise ConfigError(f"{field}: got {block_id!r}, expected whole numbers of at least 0")
