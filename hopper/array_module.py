"""NumPy or CuPy: what the same code computes with, in host or in device memory."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import ConfigError

Array = Any
"""[...] of the array module in use"""


def array_module(device: str) -> ModuleType:
    """NumPy for "cpu", CuPy for "cuda".

    Raises
    ------
    ConfigError: CuPy is needed and not installed.
    """
    if device == "cpu":
        return np
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            f"device {device!r}: arrays there need CuPy: pip install 'hopper-gnn[gpu]' ({error})"
        ) from None
    module: ModuleType = cupy
    return module


def on_host(array: Array) -> NDArray[Any]:
    """An array in host memory; a copy, if it was not there."""
    found: NDArray[Any] = array if isinstance(array, np.ndarray) else array.get()
    return found
