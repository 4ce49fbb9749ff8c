"""Whom to turn away: what each admission rule believes about the decode pool.

A request that is let in reaches the decode pool only when its prefill is done. So a rule has to say how many
decode slots will be taken *then*, and all it has is what can be seen *now*. The rules differ in nothing else.

The first three read only what a real scheduler can know: when decodes began and when accepted prefills will
end. ``per_request`` is given each request's decode time through a noisy prediction, and ``oracle`` exactly;
both say what a prediction would be worth.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real

POLICIES = {
    "baseline": "look at the prefill queue only; the decode pool is asked when the prefill is done",
    "early": "refuse if the decode pool is full now",
    "predicted": "refuse if the decode pool will be full when the prefill ends, all decodes taking the "
    "same time",
    "per_request": "the same, with a prediction of each request's own decode time",
    "oracle": "the same, with each request's true decode time, which nobody knows",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """One accepted request, as a rule sees it.

    Attributes
    ----------
    decode_start_us : int
        When its decode began, or when its prefill will end.
    decode_us : int
        How long the rule believes that it decodes.
    """

    decode_start_us: int
    decode_us: int


def slots_taken(at_us: int, accepted: Iterable[Expected]) -> int:
    """Decode slots taken at ``at_us``, if each begins and lasts as it says.

    Parameters
    ----------
    at_us : int
        When our prefill will be done; any unit will do, if it is the same throughout.
    accepted : iterable of Expected
        Decodes under way, and prefills that will end.

    Source: Qin et al. 2025 (Mooncake), section 7.4: system-level prediction gives all the same duration.

    Examples
    --------
    Decodes began at 82, 85 and 92, prefills end at 103 and 108, ours at 110; each decode lasts 20 s.

    >>> slots_taken(110, [Expected(start, 20) for start in (82, 85, 92, 103, 108)])
    3
    """
    return sum(one.decode_start_us <= at_us < one.decode_start_us + one.decode_us for one in accepted)


@dataclass(frozen=True)
class Controller:
    """An admission rule and how hard it reacts.

    Attributes
    ----------
    policy : str
        One of ``POLICIES``.
    assumed_decode_s : float
        What ``predicted`` takes every decode to last, in seconds.
    prediction_error : float
        For ``per_request``: a predicted time is the true one times a factor between 1 - error and
        1 + error, drawn once per request. From 0 to 1.
    headroom : float
        Extra load that is let in, as a share of the decode pool: 0.1 acts as if the pool were 10 % larger,
        -0.1 as if it were smaller.
    gain : float or None
        None refuses everything at the limit and nothing below it. A number lets a request in with a
        probability that is one half at the limit and falls by ``gain`` for each whole pool of load: small
        gains react gently.

    Raises
    ------
    ConfigError
        For an unknown policy or a value out of range.

    Examples
    --------
    >>> [Controller("early").admit_probability(load, slots=12) for load in (12, 13)]
    [1.0, 0.0]
    >>> [Controller("early", gain=1.0).admit_probability(load, slots=12) for load in (3, 12, 15)]
    [1.0, 0.5, 0.25]
    """

    policy: str = "baseline"
    assumed_decode_s: float = 20.0
    prediction_error: float = 0.0
    headroom: float = 0.0
    gain: float | None = None

    def __post_init__(self):
        one_of("policy", self.policy, POLICIES)
        real("assumed_decode_s", self.assumed_decode_s, above=True)
        real("headroom", self.headroom, minimum=-1.0, above=True)
        if real("prediction_error", self.prediction_error) > 1:
            raise ConfigError(f"prediction_error: got {self.prediction_error!r}, expected from 0 to 1")
        if self.gain is not None:
            real("gain", self.gain, above=True)

    def believed_decode_us(self, decode_us: int, luck: float) -> int:
        """The decode time this rule works with; ``luck`` is a draw from 0 to 1.

        A request for one token says so, and no rule takes it to decode.
        """
        if not decode_us:
            return 0
        if self.policy == "predicted":
            return round(self.assumed_decode_s * 1e6)
        if self.policy == "per_request":
            return round(decode_us * (1 + self.prediction_error * (2 * luck - 1)))
        return decode_us

    def expected_load(
        self, prefill_end_us: int, decoding: Collection[Expected], prefilling: Collection[Expected]
    ) -> int:
        """Decode slots that this rule takes to be occupied when the prefill ends; see ``POLICIES``."""
        if self.policy == "baseline":
            return 0
        if self.policy == "early":
            return len(decoding)
        return slots_taken(prefill_end_us, decoding) + slots_taken(prefill_end_us, prefilling)

    def admit_probability(self, load: int, slots: int) -> float:
        """How likely a request is let in, if ``load`` of ``slots`` will be taken, its own included."""
        limit = slots * (1 + self.headroom)
        if self.policy == "baseline":
            return 1.0
        if self.gain is None:
            return 1.0 if load <= limit else 0.0
        return min(1.0, max(0.0, 0.5 + self.gain * (limit - load) / slots))
