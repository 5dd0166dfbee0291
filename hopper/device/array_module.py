"""The array module, NumPy or CuPy, with which the same code computes in host or device memory."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import ConfigError, cannot_import

Array = Any
"""An array of the array module in use."""


def array_module(device: str) -> ModuleType:
    """Return NumPy for "cpu", and CuPy for "cuda".

    Raises
    ------
    ConfigError: CuPy is needed and not installed.
    """
    if device == "cpu":
        return np
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(cannot_import(f"device {device!r}", "cupy", error)) from error
    module: ModuleType = cupy
    return module


def on_host(array: Array) -> NDArray[Any]:
    """Copy an array to host memory, unless it is there already."""
    host_array: NDArray[Any] = array if isinstance(array, np.ndarray) else array.get()
    return host_array
