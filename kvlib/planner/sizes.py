"""How much of a tier does the plan need? Past the knee of the hit curve, room finds nothing."""

import math
from dataclasses import replace

from kvlib.planner.choose import Plan, is_better
from kvlib.planner.outcome import outcome
from kvlib.planner.setting import Setting
from kvlib.specs.checks import one_of

# The answer is good to about 2 ** (1 / 8), nine percent: nobody buys memory more finely.
HALVINGS, BISECTIONS = 12, 3


def enough_bytes(made: Plan, kind: str) -> float:
    """The least room in a store of the plan with which the whole store would not be worth its trouble.

    Parameters
    ----------
    made : Plan
    kind : str
        A store that the plan uses.

    Raises
    ------
    ConfigError
        For another one.

    Examples
    --------
    40 contexts of 30,000 tokens are 157 GB of Llama-3-8B's KV, and half of that in INT8.

    >>> from kvlib.planner import Store, plan, returning
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> asks = returning(prompt_tokens=30_000, new_tokens=100, output_tokens=100, contexts=40)
    >>> host = Store("host", 1e12, get_link("pcie5-x16"))
    >>> setting = Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), asks, 1.0, stores=(host,))
    >>> 0 < enough_bytes(plan(setting), "host") < 157e9
    True
    """
    one_of("kind", kind, [store.kind for store in made.setting.stores if store.kind in made.levers])
    full = made.outcome

    def does(num_bytes: float) -> bool:
        less = outcome(_with_room(made.setting, kind, num_bytes), made.levers, made.block_size)
        return not is_better(full, less)

    high = made.setting.store(kind).num_bytes
    for _ in range(HALVINGS):
        if not does(high / 2):
            break
        high /= 2
    low = high / 2
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if does(middle) else (middle, high)
    return high


def _with_room(setting: Setting, kind: str, num_bytes: float) -> Setting:
    stores = (replace(s, num_bytes=num_bytes) if s.kind == kind else s for s in setting.stores)
    return replace(setting, stores=tuple(stores))
