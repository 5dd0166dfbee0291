"""Chooses the kernels of message passing.

By default these are numba's on the CPU. On CUDA they are Triton's if it is installed, and torch's
otherwise. The environment variable ``HOPPER_OPS`` and :class:`use_backend` choose others. Triton is
imported only when it is first needed.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch

from hopper.errors import ConfigError, RequestError
from hopper.ops.numba_kernels import NumbaKernels
from hopper.ops.torch_kernels import Kernels

if TYPE_CHECKING:
    from hopper.ops.triton_kernels import TritonKernels

Choice = Literal["auto", "numba", "torch", "triton"]

_logger = logging.getLogger("hopper.ops")
_chosen: Choice | None = None


class use_backend:
    """Chooses the backend for the whole process, from now on or for a ``with`` statement.

    ``use_backend("torch")`` takes effect at once. As a context manager it restores the previous
    choice at the end.

    Raises
    ------
    ConfigError: the name is not one of "auto", "numba", "torch", "triton".
    """

    def __init__(self, name: Choice) -> None:
        global _chosen
        self._previous = _chosen
        _chosen = _check_name(name, "use_backend")

    def __enter__(self) -> None:
        """Do nothing, since the choice took effect in the call."""

    def __exit__(self, *exc_info: object) -> None:
        """Restore the previous choice."""
        global _chosen
        _chosen = self._previous


def backend(device: torch.device | str = "cpu") -> str:
    """Return the name of the backend for blocks on a device: "numba", "torch" or "triton".

    Raises
    ------
    ConfigError: ``HOPPER_OPS`` has an unknown value.
    RequestError: the chosen backend cannot be imported, or does not run on this device.
    """
    return kernels_for(torch.device(device)).name


def kernels_for(device: torch.device) -> Kernels:
    """Return the kernels for blocks on this device; raises as :func:`backend` does."""
    choice = _chosen or _check_name(os.environ.get("HOPPER_OPS") or "auto", "HOPPER_OPS")
    if choice == "torch":
        return Kernels()
    if device.type == "cpu" and choice != "triton":
        return NumbaKernels()
    if device.type == "cpu":
        interprets = os.environ.get("TRITON_INTERPRET") == "1"
        kernels = load_triton() if interprets else "a block is on cpu"
        if isinstance(kernels, str):
            raise RequestError(
                f"message-passing backend: 'triton' computes on GPUs only, but {kernels}; "
                "choose 'auto', 'numba' or 'torch'"
            )
        return kernels
    if choice == "numba":
        raise RequestError(
            f"message-passing backend: 'numba' computes on the CPU only, but a block is on "
            f"{device}; choose 'auto', 'torch' or 'triton'"
        )
    kernels = load_triton()
    if not isinstance(kernels, str):
        return kernels
    if choice == "triton":
        raise RequestError(f"message-passing backend 'triton' was asked for, but {kernels}")
    _say_once(f"message passing uses torch kernels on {device.type}: {kernels}")
    return Kernels()


def triton_for(device: torch.device) -> TritonKernels | None:
    """Return Triton's kernels if these are chosen for a device; raises as :func:`backend` does."""
    kernels = kernels_for(device)
    return cast("TritonKernels", kernels) if kernels.name == "triton" else None


@functools.cache
def load_triton() -> Kernels | str:
    """Return Triton's kernels, or a sentence that says why there are none."""
    try:
        kernels: Kernels = importlib.import_module("hopper.ops.triton_kernels").TritonKernels()
    except ImportError as error:
        return (
            f"Triton cannot be imported ({error}); it comes with torch's builds for CUDA: "
            "pip install triton"
        )
    return kernels


@functools.cache
def _say_once(absence: str) -> None:
    # Only one rank logs it.
    if os.environ.get("RANK", "0") == "0":
        _logger.warning("%s", absence)


def _check_name(name: Any, where: str) -> Choice:
    if name not in get_args(Choice):
        raise ConfigError(f"{where}: expected one of {', '.join(get_args(Choice))}; given {name!r}")
    return cast(Choice, name)
