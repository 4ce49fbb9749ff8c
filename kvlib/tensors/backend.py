"""numpy or torch behind the dozen operations our algorithms need, so that each is written once.

Arithmetic, ``@``, comparison, slicing, integer indexing, ``reshape``, ``swapaxes`` and ``sum(axis=…)`` are
spelt alike in both libraries and are used directly; what differs, in name or in default dtype, is here.
"""

import numpy as np

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of

NUMPY_DTYPES = ("float64", "float32")
TORCH_DTYPES = ("float64", "float32", "bfloat16", "float16")


class NumpyBackend:
    """The reference: float64 unless told otherwise.

    Parameters
    ----------
    dtype : str
        ``"float64"`` or ``"float32"``.

    Raises
    ------
    ConfigError
        For another dtype: numpy has no bfloat16, and its float16 arithmetic is slower than float32.

    Examples
    --------
    >>> xp = NumpyBackend()
    >>> xp.to_list(xp.exp(xp.floats([0.0, 0.0])))
    [1.0, 1.0]
    """

    name = "numpy"

    def __init__(self, dtype: str = "float64"):
        self.dtype = np.dtype(one_of("dtype", dtype, NUMPY_DTYPES))

    def floats(self, values):
        """An array of this backend's dtype."""
        return np.asarray(values, dtype=self.dtype)

    def ints(self, values):
        """An array of indices."""
        return np.asarray(values, dtype=np.int64)

    def zeros(self, *shape):
        """An array of zeros of this backend's dtype."""
        return np.zeros(shape, dtype=self.dtype)

    def wide(self, x):
        """`x` in a dtype that sums may be kept in: at least float32."""
        return x

    def narrow(self, x):
        """`x` in this backend's dtype."""
        return x

    def exp(self, x):
        """``e`` to the power of each element."""
        return np.exp(x)

    def max(self, x):
        """Maximum over the last axis, which stays with length 1."""
        return x.max(axis=-1, keepdims=True)

    def maximum(self, x, y):
        """The larger of two arrays, element by element."""
        return np.maximum(x, y)

    def where(self, condition, x, y: float):
        """`x` where `condition` holds, elsewhere the number `y`."""
        return np.where(condition, x, x.dtype.type(y))

    def take(self, x, indices):
        """The slices ``x[:, i]`` for each `i`: ``[a, len(indices), …]``."""
        return x.take(indices, axis=1)

    def concat(self, arrays, axis: int = 0):
        """Arrays laid end to end along an axis; always a copy."""
        return np.concatenate(arrays, axis=axis)

    def rope_tables(self, angles):
        """Cosines and sines of float64 `angles`, in this backend's dtype."""
        return self.floats(np.cos(angles)), self.floats(np.sin(angles))

    def rms_norm(self, x, weight, epsilon: float):
        """``x / sqrt(mean(x²) + epsilon) · weight`` over the last axis."""
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.dtype.type(epsilon)) * weight

    def silu(self, x):
        """``x / (1 + exp(-x))``."""
        # exp overflows to infinity far below zero, where x / infinity is the right answer, 0.
        with np.errstate(over="ignore"):
            return x / (1 + np.exp(-x))

    def log_softmax(self, x):
        """Log-probabilities over the last axis, in float64."""
        shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

    def to_numpy(self, x) -> np.ndarray:
        """A numpy array in host memory; narrow floats become float32."""
        return x

    def to_list(self, x) -> list:
        """Nested lists of Python numbers."""
        return x.tolist()


class TorchBackend:
    """The same operations on torch tensors; importing torch is left until one of these is made.

    Parameters
    ----------
    dtype : str
        ``"float64"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    device : str
        ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    ConfigError
        For another dtype, a device that is not there, or when torch is not installed.
    """

    name = "torch"

    def __init__(self, dtype: str = "float64", device: str = "cpu"):
        try:
            import torch
        except ImportError:
            raise ConfigError("backend='torch': torch is not installed; pip install 'kvlib[torch]'") from None
        self.torch = torch
        self.dtype = getattr(torch, one_of("dtype", dtype, TORCH_DTYPES))
        self.device = one_of("device", device, ("cpu", "cuda"))
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device='cuda': torch sees no CUDA device here, expected 'cpu'")
        self._sum_dtype = self.dtype if self.dtype == torch.float64 else torch.float32

    def floats(self, values):
        """A tensor of this backend's dtype."""
        return self.torch.as_tensor(values, dtype=self.dtype, device=self.device)

    def ints(self, values):
        """A tensor of indices."""
        return self.torch.as_tensor(values, dtype=self.torch.int64, device=self.device)

    def zeros(self, *shape):
        """An array of zeros of this backend's dtype."""
        return self.torch.zeros(shape, dtype=self.dtype, device=self.device)

    def wide(self, x):
        """`x` in a dtype that sums may be kept in: at least float32."""
        return x.to(self._sum_dtype)

    def narrow(self, x):
        """`x` in this backend's dtype."""
        return x.to(self.dtype)

    def exp(self, x):
        """``e`` to the power of each element."""
        return x.exp()

    def max(self, x):
        """Maximum over the last axis, which stays with length 1."""
        return x.amax(dim=-1, keepdim=True)

    def maximum(self, x, y):
        """The larger of two arrays, element by element."""
        return self.torch.maximum(x, y)

    def where(self, condition, x, y: float):
        """`x` where `condition` holds, elsewhere the number `y`."""
        return x.masked_fill(~condition, y)

    def take(self, x, indices):
        """The slices ``x[:, i]`` for each `i`: ``[a, len(indices), …]``."""
        return x.index_select(1, indices)

    def concat(self, arrays, axis: int = 0):
        """Arrays laid end to end along an axis; always a copy."""
        return self.torch.cat(arrays, dim=axis)

    def rope_tables(self, angles):
        """Cosines and sines of float64 `angles`, in this backend's dtype."""
        return self.floats(np.cos(angles)), self.floats(np.sin(angles))

    def rms_norm(self, x, weight, epsilon: float):
        """``x / sqrt(mean(x²) + epsilon) · weight`` over the last axis."""
        x = self.wide(x)
        return self.narrow(x * (x.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt()) * weight

    def silu(self, x):
        """``x / (1 + exp(-x))``."""
        return self.torch.nn.functional.silu(x)

    def log_softmax(self, x):
        """Log-probabilities over the last axis, in float64."""
        return x.to(self.torch.float64).log_softmax(dim=-1)

    def to_numpy(self, x) -> np.ndarray:
        """A numpy array in host memory; narrow floats become float32."""
        # numpy has no bfloat16, so narrow floats leave as float32.
        return (self.wide(x) if x.is_floating_point() else x).cpu().numpy()

    def to_list(self, x) -> list:
        """Nested lists of Python numbers."""
        return x.tolist()


def get_backend(name: str = "numpy", dtype: str = "float64", device: str = "cpu"):
    """The backend of that name.

    Raises
    ------
    ConfigError
        For an unknown name, a dtype the library does not have, or a device that is not there.

    Examples
    --------
    >>> get_backend("numpy", "float32").floats([1, 2]).dtype.name
    'float32'
    >>> get_backend("jax")
    Traceback (most recent call last):
    kvlib.errors.ConfigError: backend: got 'jax', expected one of numpy, torch
    """
    if one_of("backend", name, ("numpy", "torch")) == "torch":
        return TorchBackend(dtype, device)
    one_of("device", device, ("cpu",))
    return NumpyBackend(dtype)
