"""A request on its way through the engine."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """What the scheduler and the engine keep of one request.

    A request is answered by ``size`` equally long sequences. The tokens of the prompt count once, those of
    the answers once for each sequence.

    Attributes
    ----------
    index : int
        Row in the workload, and the name of the sequence in memory.
    request : object
        What the client sent; only a memory policy looks inside.
    arrival_ps, first_token_ps : int
        Times; the second is None until there is one.
    prompt_tokens, size : int
    read_again : int
        Tokens that a decode step reads twice or more: every sequence reads the prompt.
    final_tokens : int
        Tokens in memory at its end. The very last token is never written: nobody would read its KV.
    prefill_tokens : int
        Tokens to compute at (re)admission: the prompt and what has been generated.
    num_tokens : int
        Tokens in memory: while it decodes, all but the last one generated, whose KV the next step writes.
    cached_tokens : int
        How many of these were there when it was admitted.
    dropped_tokens : int
        Tokens of KV that it lost when it last gave way.
    capacity : int
        How far ``num_tokens`` can rise in the slots that it holds.
    padding_slots : int
        Slots among them that it will never use.
    num_preemptions : int
        How often it gave way.
    swapped_slots : int
        Slots of it that wait on the host.
    """

    index: int
    request: object
    arrival_ps: int
    prompt_tokens: int
    final_tokens: int
    prefill_tokens: int
    size: int = 1
    read_again: int = 0
    num_tokens: int = 0
    cached_tokens: int = 0
    dropped_tokens: int = 0
    capacity: int = 0
    padding_slots: int = 0
    first_token_ps: int | None = None
    num_preemptions: int = 0
    swapped_slots: int = 0

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens are still to be computed before the next one can be generated."""
        return self.num_tokens < self.prefill_tokens

    def steps_from(self, num_tokens: int) -> int:
        """Decode steps from so many tokens in memory to its end."""
        return (self.final_tokens - num_tokens) // self.size

    @property
    def empty_slots(self) -> int:
        """Slots held for it that hold no token yet."""
        return self.capacity - self.num_tokens

    def pieces(self, new_tokens: int) -> list[tuple[int, int]]:
        """The next ``new_tokens`` of its prefill as pairs ``(new, cached)``: so many tokens after so many.

        When several sequences come back after a preemption, each continues the same prompt.

        Examples
        --------
        >>> job = Job(0, None, 0, prompt_tokens=100, final_tokens=180, prefill_tokens=160, size=2)
        >>> job.pieces(160)
        [(100, 0), (30, 100), (30, 100)]
        >>> job.num_tokens = 110; job.pieces(40)
        [(20, 110), (20, 100)]
        """
        start, end = self.num_tokens, self.num_tokens + new_tokens
        if self.size == 1:
            return [(new_tokens, start)]
        pieces = [(min(end, self.prompt_tokens) - start, start)] if start < self.prompt_tokens else []
        answer_tokens = (self.prefill_tokens - self.prompt_tokens) // self.size
        start = max(start, self.prompt_tokens)
        while start < end:
            done = (start - self.prompt_tokens) % answer_tokens
            new = min(answer_tokens - done, end - start)
            pieces.append((new, self.prompt_tokens + done))
            start += new
        return pieces
