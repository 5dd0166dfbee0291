"""Blocks to compute on, and every set of kernels that must agree."""

import importlib.util
import os
from collections.abc import Callable, Iterator

import pytest
import torch

from hopper.graph.block import Block, Nodes
from hopper.graph.schema import Relation
from hopper.ops import selection
from hopper.ops.numba_kernels import NumbaKernels

MakeBlock = Callable[..., Block]

# Without a GPU its programs run in Python; Triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


# Parallel edges, an empty destination in the middle and at the end, an unused source.
ROWS = [[0, 2, 2, 5], [], [1], [5, 4, 1, 0, 2], []]
NUM_SRC = 7
SHAPES = [(ROWS, NUM_SRC), ([[], []], 3), ([], 4), ([], 0), ([[0]], 1)]


def random_leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Random values that require a gradient."""
    generator = torch.Generator().manual_seed(seed + 17 * len(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


@pytest.fixture
def make_block() -> MakeBlock:
    """Return a function (in-neighbours of each destination, num_src) -> Block."""

    def make(rows: list[list[int]], num_src: int, key: int = 0) -> Block:
        counts = [len(row) for row in rows]
        flat = [source for row in rows for source in row]
        return Block(
            relation=Relation("paper", "cites", "paper"),
            num_src=num_src,
            num_dst=len(rows),
            indptr=torch.tensor([0, *counts], dtype=torch.int64).cumsum(0),
            indices=torch.tensor(flat, dtype=torch.int64),
            positions=torch.tensor([i for row in rows for i in range(len(row))], dtype=torch.int64),
            src=Nodes("paper", torch.arange(num_src) * 7 + 3, torch.arange(num_src) + 1, key),
            dst=Nodes(
                "paper",
                torch.arange(len(rows)) * 7 + 3,
                torch.tensor([2 * count for count in counts], dtype=torch.int64),
                key,
            ),
        )

    return make


@pytest.fixture(params=["numba", "torch", "triton"])
def kernels(request) -> Iterator[str]:
    """Run the test once with each set of kernels."""
    if request.param == "triton":
        if importlib.util.find_spec("triton") is None:
            pytest.skip("Triton is not installed")
        if torch.cuda.is_available():
            pytest.skip("with a GPU Triton's programs are compiled for it: see test_triton.py")
    with selection.use_backend(request.param):
        yield request.param


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The gathering sums that ran: "weighted" or "plain", in order."""
    sums: list[str] = []

    class CountingKernels(NumbaKernels):
        def gather_sum(self, csr, x, weights):
            sums.append("plain" if weights is None else "weighted")
            return super().gather_sum(csr, x, weights)

    monkeypatch.setattr(selection, "kernels_for", lambda device: CountingKernels())
    return sums
