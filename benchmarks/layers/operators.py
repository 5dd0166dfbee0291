"""Counts the operators that a side launches: on a GPU each would be a kernel, or a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.layers.sides import LayerSide
from hopper.ops import csr, use_backend

SELECTION: Final = "selection"
"""operators whose results are whole numbers or truth values: which edges, which rows"""
PRODUCTS: Final = "products"
"""products of matrices"""
AGGREGATION: Final = "aggregation"
"""all others: rows are gathered, weighted and added up"""

_PRODUCTS: Final = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot"})
_WITHOUT_KERNEL: Final = ("empty", "new_empty", "detach", "lift", "_unsafe_view", "_local_scalar")
"""beginnings of names of operators that allocate, alias or read without a kernel"""


class Operators(NamedTuple):
    """Operators of an epoch: of both ways together, and of the forward pass by what they do."""

    whole: int
    forward: dict[str, int]


class OperatorCount(TorchDispatchMode):
    """Counts what torch dispatches while it is entered, by what it does; views are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and count it."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(_WITHOUT_KERNEL):
            self.counts[_kind(name, result)] += 1
        return result


def _kind(name: str, result: Any) -> str:
    if name in _PRODUCTS:
        return PRODUCTS
    parts = result if isinstance(result, tuple | list) else [result]
    tensors = [value for value in parts if isinstance(value, Tensor)]
    if tensors and not any(tensor.is_floating_point() for tensor in tensors):
        return SELECTION
    return AGGREGATION


def count_operators(side: LayerSide) -> Operators:
    """Count the operators of one pass over all batches.

    Hopper's message passing is computed by operators of torch meanwhile, so that none of its own
    compiled kernels is left out; its transposition of edges for the backward pass, a compiled loop
    on the CPU, counts as one. What the host prepares is left out.
    """
    with use_backend("torch"):
        forward = _count(side, side.forward)
        with patch.object(csr, "_counting_sort", wraps=csr._counting_sort) as transpositions:
            whole = _count(side, side.compute).total() + transpositions.call_count
    return Operators(whole, {kind: forward[kind] for kind in (SELECTION, AGGREGATION, PRODUCTS)})


def _count(side: LayerSide, run: Callable[[int, Any], Tensor]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for batch, subgraph in enumerate(side.work.batches):
        prepared = side.prepare(batch, subgraph)
        with torch.enable_grad(), OperatorCount() as counted:
            run(batch, prepared)
        counts += counted.counts
    return counts
