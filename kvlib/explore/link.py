"""The address of one state of an explorer: what "Link to this state" on a page makes, made in Python."""

from __future__ import annotations

from urllib.parse import urlencode

from kvlib.errors import ConfigError
from kvlib.explore.explorer import REGISTRY


def state_link(explorer_id: str, **params) -> str:
    """The fragment that opens `explorer_id` with `params`, on the page where the explorer stands.

    Raises
    ------
    ConfigError
        An unknown explorer or control, or a value the control does not accept.

    Examples
    --------
    >>> state_link("kv_cache.size", model="opt-13b", context=2000)
    '#kv=kv_cache.size&model=opt-13b&context=2000'
    """
    controls = {control.name: control for control in REGISTRY[explorer_id].controls}
    unknown = sorted(set(params) - set(controls))
    if unknown:
        raise ConfigError(f"{explorer_id} has no control {unknown[0]!r}; it has {', '.join(controls)}")
    checked = {name: controls[name].check(value) for name, value in params.items()}
    return "#" + urlencode({"kv": explorer_id, **{name: _as_script(value) for name, value in checked.items()}})


def _as_script(value) -> str:
    """`value` as the page script writes it: ``true``, and 4 for 4.0."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)
