"""Which kernels compute message passing: DGL's on the CPU where installed, torch's otherwise.

The choice is "auto" unless the environment variable ``HOPPER_OPS`` or :class:`use_backend` says
otherwise. DGL is imported when it is first needed, never before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import os
import warnings
from types import ModuleType
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor

from hopper.errors import ConfigError, RequestError
from hopper.ops.csr import Csr
from hopper.ops.dgl_kernels import DglKernels
from hopper.ops.torch_kernels import CsrKernels, SegmentKernels

Choice = Literal["auto", "dgl", "torch"]

_logger = logging.getLogger("hopper.ops")
_chosen: Choice | None = None


class Kernels(Protocol):
    """What a backend provides: one deterministic operation, not differentiable by itself."""

    name: str

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """[num_rows, width]: the weighted sum of the rows of x that each row gathers."""
        ...


class use_backend:
    """Choose the backend for the whole process, from now on or for a ``with`` statement.

    ``use_backend("torch")`` takes effect at once; as a context manager it restores the previous
    choice at the end.

    Raises
    ------
    ConfigError
        The name is none of "auto", "dgl", "torch".
    """

    def __init__(self, name: Choice) -> None:
        global _chosen
        self._previous = _chosen
        _chosen = _checked(name, "use_backend")

    def __enter__(self) -> None:
        """Nothing: the choice holds since the call."""

    def __exit__(self, *exc_info: object) -> None:
        """Restore the choice that held before."""
        global _chosen
        _chosen = self._previous


def backend(device: torch.device | str = "cpu") -> Literal["dgl", "torch"]:
    """The backend that computes blocks on this device.

    Raises
    ------
    ConfigError
        ``HOPPER_OPS`` has an unknown value.
    RequestError
        "dgl" was chosen and DGL is not importable, or the device is not the CPU.
    """
    return "dgl" if kernels_for(torch.device(device)).name == "dgl" else "torch"


def kernels_for(device: torch.device) -> Kernels:
    """The kernels for blocks on this device; raises as :func:`backend` does."""
    choice = _chosen or _checked(os.environ.get("HOPPER_OPS") or "auto", "HOPPER_OPS")
    if device.type != "cpu":
        if choice == "dgl":
            raise RequestError(
                f"message-passing backend: 'dgl' computes on the CPU only, but a block is on "
                f"{device}; choose 'auto' or 'torch'"
            )
        return SegmentKernels()
    if choice == "torch":
        return CsrKernels()
    dgl = load_dgl()
    if isinstance(dgl, ModuleType):
        return DglKernels(dgl)
    if choice == "dgl":
        raise RequestError(f"message-passing backend 'dgl' was asked for, but {dgl}")
    _say_once(dgl)
    return CsrKernels()


@functools.cache
def load_dgl() -> ModuleType | str:
    """DGL, imported quietly with the torch backend; or the sentence that says why it is absent."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return importlib.import_module("dgl")
    # A DGL built for another torch fails in many ways, OSError and FileNotFoundError among them.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return (
            f"DGL cannot be imported ({reason}); to install it: pip install 'hopper-gnn[dgl]' "
            "(CPython 3.11 or older)"
        )


@functools.cache
def _say_once(absence: str) -> None:
    # One rank speaks for all of them.
    if os.environ.get("RANK", "0") == "0":
        _logger.warning("message passing uses torch kernels on the CPU: %s", absence)


def _checked(name: Any, where: str) -> Choice:
    if name not in get_args(Choice):
        raise ConfigError(f"{where}: expected one of {', '.join(get_args(Choice))}; given {name!r}")
    return cast(Choice, name)
