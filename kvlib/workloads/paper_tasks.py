"""The two other tasks of the PagedAttention paper: translation with a shared prefix, and a chatbot.

Kwon et al., SOSP 2023: section 6.4 translates WMT16 English to German behind one or five examples, 80 and
341 tokens that every prompt begins with; section 6.5 answers the last message of a conversation whose history
is cut to the last 1,024 tokens. The paper prints no length distributions for them; ours are assumptions.
"""

from kvlib.errors import ConfigError
from kvlib.workloads.arrivals import US_PER_S, arrivals_and_draws
from kvlib.workloads.block_numbering import BlockNumbering
from kvlib.workloads.lengths import EXPONENTIAL, NARROW, PROBABILITIES, LengthDistribution
from kvlib.workloads.request import Request

# examples -> tokens of the prefix; oracle L7.prefix.1shot and exercise 7 of lecture 7
PREFIX_TOKENS = {1: 80, 5: 341}
# Assumed: a sentence of some 30 tokens, and a translation of about the same length.
SENTENCE = LengthDistribution.fitted(NARROW, mean_tokens=30, max_tokens=256)
# Assumed: seven conversations of ten are longer than the cut ("for most requests", says the paper).
CHAT_CUT = 1024
CHAT_PROMPT = LengthDistribution(
    tuple(min(float(CHAT_CUT), 64 + share / 0.3 * (CHAT_CUT - 64)) for share in PROBABILITIES)
)
CHAT_ANSWER = LengthDistribution.fitted(EXPONENTIAL, mean_tokens=337.99, max_tokens=CHAT_CUT)


def translation_like(
    n: int, rate: float, seed: int, shots: int = 5, block_size: int = 16
) -> tuple[Request, ...]:
    """Return ``n`` translation requests that all begin with the same examples.

    Parameters
    ----------
    n : int
        Number of requests, at least 1.
    rate : float
        Mean arrivals per second (Poisson).
    seed : int
        Same seed, same requests; the sentences depend on neither rate nor shots.
    shots : int
        Examples before the sentence: 1 (80 tokens) or 5 (341 tokens).
    block_size : int
        Tokens per block id.

    Returns
    -------
    tuple of Request
        In order of arrival, with ``block_ids``.

    Raises
    ------
    ConfigError
        If an argument is of the wrong type or out of range.

    Examples
    --------
    >>> first, second = translation_like(2, rate=1.0, seed=0)
    >>> [one.block_ids.index(other) for one, other in ((first, 20), (second, 20))], 21 in second.block_ids
    ([20, 20], False)
    """
    if shots not in PREFIX_TOKENS or isinstance(shots, bool):
        raise ConfigError(f"shots: got {shots!r}, expected one of {', '.join(map(str, PREFIX_TOKENS))}")
    times_us, rng = arrivals_and_draws(n, rate, seed)
    numbering = BlockNumbering(block_size)
    requests = []
    for number, time_us in enumerate(times_us):
        sentence, translation = SENTENCE.draw(rng), SENTENCE.draw(rng)
        segments = [("examples", PREFIX_TOKENS[shots]), (("sentence", number), sentence)]
        num_input_tokens, block_ids = PREFIX_TOKENS[shots] + sentence, numbering.block_ids(segments)
        requests.append(Request(time_us / US_PER_S, num_input_tokens, translation, block_ids))
    return tuple(requests)


def chatbot_like(n: int, rate: float, seed: int) -> tuple[Request, ...]:
    """Return ``n`` requests of a chatbot whose long histories are cut to 1,024 tokens.

    Parameters, returned value and errors are those of :func:`kvlib.workloads.sharegpt_like`.

    Examples
    --------
    >>> requests = chatbot_like(1000, rate=1.0, seed=0)
    >>> sum(request.num_input_tokens == 1024 for request in requests) > 600
    True
    """
    times_us, rng = arrivals_and_draws(n, rate, seed)
    return tuple(Request(us / US_PER_S, CHAT_PROMPT.draw(rng), CHAT_ANSWER.draw(rng)) for us in times_us)
