"""Workloads without a file: ShareGPT-like, Alpaca-like and fixed lengths, with Poisson arrivals."""

from kvlib.workloads import lengths
from kvlib.workloads.arrivals import US_PER_S, arrivals_and_draws
from kvlib.workloads.request import Request


def sharegpt_like(n: int, rate: float, seed: int) -> tuple[Request, ...]:
    """Return ``n`` chat requests with ShareGPT's mean lengths (161.31 in, 337.99 out).

    Lengths are clipped to 1,024 tokens each; input and output are drawn independently. The shape is
    stated in :mod:`kvlib.workloads.lengths`.

    Parameters
    ----------
    n : int
        Number of requests, at least 1.
    rate : float
        Mean arrivals per second (Poisson).
    seed : int
        Same seed, same requests; the lengths do not depend on the rate.

    Returns
    -------
    tuple of Request
        In order of arrival.

    Raises
    ------
    ConfigError
        If an argument is of the wrong type or not positive.

    Examples
    --------
    >>> mean_input, mean_output = lengths.mean_lengths(sharegpt_like(20_000, rate=3.0, seed=0))
    >>> abs(mean_input - 161.31) < 5 and abs(mean_output - 337.99) < 8
    True
    """
    return _drawn(n, rate, seed, lengths.SHAREGPT_INPUT, lengths.SHAREGPT_OUTPUT)


def alpaca_like(n: int, rate: float, seed: int) -> tuple[Request, ...]:
    """Return ``n`` instruction requests with Alpaca's mean lengths (19.31 in, 58.45 out).

    Parameters, returned value and errors are those of :func:`sharegpt_like`.

    Examples
    --------
    >>> len(alpaca_like(5, rate=30.0, seed=0))
    5
    """
    return _drawn(n, rate, seed, lengths.ALPACA_INPUT, lengths.ALPACA_OUTPUT)


def fixed_lengths(
    n: int, rate: float, seed: int, *, num_input_tokens: int, num_output_tokens: int
) -> tuple[Request, ...]:
    """Return ``n`` requests that differ only in their arrival time.

    Parameters, returned value and errors are those of :func:`sharegpt_like`; the two lengths are in
    tokens.

    Examples
    --------
    >>> [one.arrival_s for one in fixed_lengths(1, 1.0, 0, num_input_tokens=100, num_output_tokens=300)]
    [1.418629]
    """
    arrival_times_us, _ = arrivals_and_draws(n, rate, seed)
    return tuple(Request(us / US_PER_S, num_input_tokens, num_output_tokens) for us in arrival_times_us)


def _drawn(n, rate, seed, input_lengths, output_lengths):
    arrival_times_us, rng = arrivals_and_draws(n, rate, seed)
    return tuple(
        Request(us / US_PER_S, input_lengths.draw(rng), output_lengths.draw(rng)) for us in arrival_times_us
    )
