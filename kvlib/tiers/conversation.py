"""A chat of many turns: how long until the first token of each turn, by where the history is kept?"""

from dataclasses import dataclass

from kvlib.cost import prefill_s, transfer_s
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec
from kvlib.tiers.overlap import overlapped_prefill


@dataclass(frozen=True)
class Turn:
    """One turn, with the TTFT it has in each case.

    Attributes
    ----------
    number : int
        From 1.
    history_tokens : int
        Questions and answers of the turns before, all of them cached.
    no_cache_s : float
        History and question are prefilled.
    gpu_hit_s : float
        The history is still in GPU memory: only the question is prefilled.
    loaded_s : float
        The history is loaded, then the question is prefilled.
    overlapped_s : float
        The same, layer by layer at once.
    """

    number: int
    history_tokens: int
    no_cache_s: float
    gpu_hit_s: float
    loaded_s: float
    overlapped_s: float


def conversation(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, turns: int = 20, question_tokens: int = 200,
    answer_tokens: int = 400, kv_dtype="bf16", num_gpus: int = 1,
) -> list[Turn]:
    """The TTFT of every turn of a conversation whose history lies behind `link`.

    Lecture 9, s1.2, fixes the sum (600 tokens a turn); 200 + 400 is our choice.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> last = conversation(get_model("llama-3-8b"), get_gpu("h100-80gb"), get_link("net-3g"))[-1]
    >>> last.history_tokens, round(last.no_cache_s, 2), round(last.loaded_s, 2)
    (11400, 0.29, 4.99)
    """
    whole("turns", turns)
    whole("question_tokens", question_tokens)
    whole("answer_tokens", answer_tokens)
    made = []
    for number in range(1, turns + 1):
        history = (number - 1) * (question_tokens + answer_tokens)
        question = prefill_s(model, gpu, question_tokens, history, num_gpus)
        load = transfer_s(model.shape.kv_bytes(history, kv_dtype), link) if history else 0.0
        overlapped = overlapped_prefill(model, gpu, link, question_tokens, history, kv_dtype, num_gpus)
        made.append(Turn(
            number=number, history_tokens=history,
            no_cache_s=prefill_s(model, gpu, history + question_tokens, 0, num_gpus),
            gpu_hit_s=question, loaded_s=load + question, overlapped_s=overlapped.prefill_s,
        ))
    return made
