"""Which kernels compute message passing: numba's on the CPU, and on CUDA Triton's where it is
installed, torch's otherwise.

The choice is "auto" unless the environment variable ``HOPPER_OPS`` or :class:`use_backend` says
otherwise. Triton is imported when it is first needed, never before.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor

from hopper.errors import ConfigError, RequestError
from hopper.graph.block import Edges
from hopper.ops.csr import Csr
from hopper.ops.numba_kernels import NumbaKernels
from hopper.ops.torch_kernels import SegmentKernels

Choice = Literal["auto", "numba", "torch", "triton"]

_logger = logging.getLogger("hopper.ops")
_chosen: Choice | None = None


class Kernels(Protocol):
    """What a backend provides: deterministic operations, not differentiable by themselves."""

    name: str

    def gather_sum(self, csr: Csr, x: Tensor, weights: Tensor | None) -> Tensor:
        """[num_rows, width]: the weighted sum of the rows of x that each row gathers."""
        ...

    def edge_dot(self, block: Edges, x: Tensor, y: Tensor) -> Tensor:
        """[edges, H]: the product of each edge's source row of x and destination row of y."""
        ...

    def softmax(
        self, block: Edges, logits: Tensor, own: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Shares of each destination's edges, and of itself where it has a logit of its own."""
        ...

    def softmax_gradient(
        self,
        block: Edges,
        shares: Tensor,
        own: Tensor | None,
        grad: Tensor,
        grad_own: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of the logits, from the shares and the gradients of these."""
        ...


class use_backend:
    """Choose the backend for the whole process, from now on or for a ``with`` statement.

    ``use_backend("torch")`` takes effect at once; as a context manager it restores the previous
    choice at the end.

    Raises
    ------
    ConfigError
        The name is none of "auto", "numba", "torch", "triton".
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


def backend(device: torch.device | str = "cpu") -> str:
    """The backend that computes blocks on this device: "numba", "torch" or "triton".

    Raises
    ------
    ConfigError
        ``HOPPER_OPS`` has an unknown value.
    RequestError
        What was chosen is not importable, or does not compute on this device.
    """
    return kernels_for(torch.device(device)).name


def kernels_for(device: torch.device) -> Kernels:
    """The kernels for blocks on this device; raises as :func:`backend` does."""
    choice = _chosen or _checked(os.environ.get("HOPPER_OPS") or "auto", "HOPPER_OPS")
    if choice == "torch":
        return SegmentKernels()
    if device.type == "cpu":
        return _on_cpu(choice)
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
    return SegmentKernels()


def _on_cpu(choice: Choice) -> Kernels:
    if choice != "triton":
        return NumbaKernels()
    kernels = load_triton() if os.environ.get("TRITON_INTERPRET") == "1" else "a block is on cpu"
    if isinstance(kernels, str):
        raise RequestError(
            f"message-passing backend: 'triton' computes on GPUs only, but {kernels}; "
            "choose 'auto', 'numba' or 'torch'"
        )
    return kernels


@functools.cache
def load_triton() -> Kernels | str:
    """The kernels in Triton; or the sentence that says why there are none."""
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
    # One rank speaks for all of them.
    if os.environ.get("RANK", "0") == "0":
        _logger.warning("%s", absence)


def _checked(name: Any, where: str) -> Choice:
    if name not in get_args(Choice):
        raise ConfigError(f"{where}: expected one of {', '.join(get_args(Choice))}; given {name!r}")
    return cast(Choice, name)
