"""What may be encoded: float KV of shape [layers, 2, tokens, channels], every number finite."""

import numpy as np

from kvlib.errors import ConfigError

DTYPES = ("float32", "float16", "bfloat16", "float64")
LARGEST = float(np.finfo(np.float32).max)


def dtype_name(kv) -> str:
    """``"bfloat16"`` for a torch tensor or an array of that dtype, and so on.

    Raises
    ------
    ConfigError
        For anything that is not an array of one of `DTYPES`.
    """
    name = str(getattr(kv, "dtype", type(kv).__name__)).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"kv: got {name}, expected an array or tensor of {', '.join(DTYPES)}")
    return name


def checked_kv(kv) -> np.ndarray:
    """The float64 planes of `kv`, [2 · layers, tokens, channels].

    Parameters
    ----------
    kv : array or tensor [layers, 2, tokens, channels]
        numpy, torch (any device) or ml_dtypes; need not be contiguous.

    Raises
    ------
    ConfigError
        For a missing layer, another shape or dtype, or a number that is not finite or does not fit float32;
        the message names the layer and the token.

    Examples
    --------
    >>> checked_kv(np.zeros((3, 2, 5, 4), np.float16)).shape
    (6, 5, 4)
    >>> checked_kv([np.zeros((2, 5, 4)), None])
    Traceback (most recent call last):
    kvlib.errors.ConfigError: kv: layer 1 is None, expected keys and values for every layer
    """
    if isinstance(kv, (list, tuple)):
        for layer, part in enumerate(kv):
            if part is None:
                raise ConfigError(f"kv: layer {layer} is None, expected keys and values for every layer")
        raise ConfigError("kv: got a list, expected one array [layers, 2, tokens, channels]")
    dtype_name(kv)
    if hasattr(kv, "detach"):
        # A float64 tensor keeps its precision; numpy has no bfloat16, so narrow ones go through float32.
        kv = kv.detach().cpu().double().numpy()
    array = np.asarray(kv, dtype=np.float64)
    if array.ndim != 4 or array.shape[1] != 2 or 0 in (array.shape[0], array.shape[3]):
        raise ConfigError(f"kv: got shape {array.shape}, expected [layers, 2, tokens, channels]")
    # `not <=` rather than `>`, so that NaN is caught as well.
    wrong = ~(np.abs(array) <= LARGEST)
    if wrong.any():
        layer, which, token, channel = (int(i) for i in np.argwhere(wrong)[0])
        found = array[layer, which, token, channel]
        raise ConfigError(
            f"kv: {'KV'[which]} of layer {layer}, token {token}, channel {channel} is {found}, "
            "expected a finite number that float32 can hold"
        )
    layers, _, tokens, channels = array.shape
    return array.reshape(2 * layers, tokens, channels)
