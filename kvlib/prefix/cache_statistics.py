"""What a prefix cache saved, each request counted once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheStatistics:
    """Requests, their prompt tokens, and those of the tokens that needed no prefill.

    Examples
    --------
    >>> first = CacheStatistics().after(prompt_tokens=32, hit_tokens=0)
    >>> first.after(prompt_tokens=32, hit_tokens=16).hit_ratio
    0.25
    """

    num_requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0

    def after(self, prompt_tokens: int, hit_tokens: int) -> "CacheStatistics":
        """Return the statistics with one more request."""
        return CacheStatistics(
            self.num_requests + 1, self.prompt_tokens + prompt_tokens, self.hit_tokens + hit_tokens
        )

    @property
    def hit_ratio(self) -> float:
        """Hit tokens over prompt tokens, from 0 to 1; 0.0 before the first request."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
