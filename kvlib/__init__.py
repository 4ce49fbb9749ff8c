"""kvlib: KV-cache management for LLM serving, small enough to read.

Everything outside ``kvlib.tensors`` and the array half of ``kvlib.cachegen`` uses only the
standard library, so that the same code runs in CPython and in the reader's browser.
"""

__version__ = "0.1.0"
