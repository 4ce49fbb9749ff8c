"""Renting somebody else's cache: after how many calls does writing a prompt into it pay?

A provider with a priced prompt cache charges a written token at `write` times the input price and a token
read from the cache at `read` times. The first call writes; a later one reads, unless it comes after the entry
has expired, and then it writes again.
"""

import math
from dataclasses import dataclass

from kvlib.specs.checks import real, whole


@dataclass(frozen=True)
class Price:
    """A list price, relative to the same provider's price of an ordinary input token.

    Attributes
    ----------
    name : str
    write, read : float
    lifetime : str
        How long an entry lives without being used.
    source : str
        Where and when it could be read.
    """

    name: str
    write: float
    read: float
    lifetime: str
    source: str

    def __post_init__(self) -> None:
        real("write", self.write, above=True)
        real("read", self.read)

    def later_call(self, late_share: float = 0.0) -> float:
        """Mean cost of a call after the first, per token; `late_share` of them find their entry expired.

        Examples
        --------
        >>> five_minutes = Price("mine", write=1.25, read=0.1, lifetime="", source="")
        >>> five_minutes.later_call(), round(five_minutes.later_call(late_share=0.5), 3)
        (0.1, 0.675)
        """
        late = min(1.0, real("late_share", late_share))
        return late * self.write + (1 - late) * self.read

    def cost(self, calls: int, late_share: float = 0.0) -> float:
        """Cost of the cached part over `calls` calls, per token, where an ordinary token costs 1.

        Examples
        --------
        >>> round(Price("mine", write=1.25, read=0.1, lifetime="", source="").cost(calls=3), 2)
        1.45
        """
        return self.write + (whole("calls", calls) - 1) * self.later_call(late_share)


def calls_to_pay(price: Price, late_share: float = 0.0) -> int | None:
    """The fewest calls, the writing one included, at which caching costs less than not caching.

    From write + (n - 1) * later < n follows n > (write - later) / (1 - later).

    Returns
    -------
    int or None
        None if a later call costs no less than an ordinary one: caching never pays.

    Examples
    --------
    >>> prices = [Price("", write, 0.1, "", "") for write in (1.0, 1.25, 2.0)]
    >>> [calls_to_pay(price) for price in prices], calls_to_pay(prices[1], late_share=0.8)
    ([2, 2, 3], None)
    """
    later = price.later_call(late_share)
    if later >= 1:
        return None
    # Rounded, because at a tie the last place of a float must not decide.
    return max(1, math.floor(round((price.write - later) / (1 - later), 9)) + 1)


_ANTHROPIC = "platform.claude.com/docs, pricing, row Claude Opus 5 ({0} against $5 per million)"
_STORED = "; undated copy, read on 29 November 2026, not checked since"

# Prices change often: each row says where it stood. Look again before you rely on one.
LIST_PRICES = (
    Price("Anthropic, 5 minutes", 1.25, 0.1, "5 minutes",
          _ANTHROPIC.format("$6.25 written, $0.50 read") + _STORED),
    Price("Anthropic, 1 hour", 2.0, 0.1, "1 hour",
          _ANTHROPIC.format("$10 written, $0.50 read") + _STORED),
    Price("Google, implicit", 1.0, 0.1, "not promised",
          "docs.cloud.google.com, context cache overview (90 % off, no storage cost)" + _STORED),
    Price("Mistral", 1.0, 0.1, "not stated",
          "docs.mistral.ai, prompt caching (10 % of the input price)" + _STORED),
    Price("DeepSeek Flash, off-peak", 1.0, 0.02, "not stated",
          "$0.003 against $0.15 per million, as a third party noted on 27 October 2026; not checked since"),
)
