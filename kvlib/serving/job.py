"""A request on its way through the engine."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """What the scheduler and the engine keep of one request.

    Attributes
    ----------
    index : int
        Row in the workload, and the name of the sequence in memory.
    request : object
        What the client sent; only a memory policy looks inside.
    arrival_ps, first_token_ps : int
        Times; the second is None until there is one.
    prefill_tokens : int
        Tokens to compute at (re)admission: the prompt and what has been generated.
    num_tokens : int
        Tokens in memory: while it decodes, all but the last one generated, whose KV the next step writes.
    final_tokens : int
        Tokens in memory at its end. The very last token is never written: nobody would read its KV.
    shared_tokens : int
        How many of these lie in blocks of a prefix that is there for everybody.
    padding_slots : int
        Slots held while it runs that it will never use.
    num_preemptions : int
        How often it gave way.
    is_swapped : bool
        Its blocks wait on the host.
    """

    index: int
    request: object
    arrival_ps: int
    prefill_tokens: int
    final_tokens: int
    num_tokens: int = 0
    shared_tokens: int = 0
    padding_slots: int = 0
    first_token_ps: int | None = None
    num_preemptions: int = 0
    is_swapped: bool = False

    @property
    def own_tokens(self) -> int:
        """Tokens in memory that nobody shares."""
        return self.num_tokens - self.shared_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens are still to be computed before the next one can be generated."""
        return self.num_tokens < self.prefill_tokens
