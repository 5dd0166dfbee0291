"""Full-neighbourhood blocks of random symmetric graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from hopper.graph.block import Block, Nodes
from hopper.graph.schema import Relation

Model = TypeVar("Model", bound=torch.nn.Module)


@dataclass
class Graph:
    """A symmetric graph without self loops; node ids are also original ids."""

    neighbors: list[list[int]]

    @property
    def num_nodes(self) -> int:
        return len(self.neighbors)

    @property
    def hub(self) -> int:
        """The node with the most neighbours."""
        return max(range(self.num_nodes), key=lambda v: len(self.neighbors[v]))

    def block(
        self,
        roots: list[int] | None = None,
        sampled_neighbors: dict[int, list[int]] | None = None,
        sources: list[int] | None = None,
        key: int = 11,
    ) -> Block:
        """The block of some roots (all nodes by default), with all or chosen neighbours.

        ``sampled_neighbors`` maps a node to the neighbours that were sampled.
        """
        roots = list(range(self.num_nodes)) if roots is None else roots
        neighbors = {v: (sampled_neighbors or {}).get(v, self.neighbors[v]) for v in roots}
        frontier = list(roots)
        for v in roots:
            frontier += [u for u in neighbors[v] if u not in frontier]
        frontier += [u for u in sources or [] if u not in frontier]
        row = {u: i for i, u in enumerate(frontier)}
        degree = torch.tensor([len(n) for n in self.neighbors], dtype=torch.int64)
        flat = [(u, self.neighbors[v].index(u)) for v in roots for u in neighbors[v]]
        ids = torch.tensor(frontier, dtype=torch.int64)
        dst = ids[: len(roots)]
        return Block(
            relation=Relation("paper", "cites", "paper"),
            num_src=len(frontier),
            num_dst=len(roots),
            indptr=torch.tensor([0] + [len(neighbors[v]) for v in roots]).cumsum(0),
            indices=torch.tensor([row[u] for u, _ in flat], dtype=torch.int64),
            positions=torch.tensor([place for _, place in flat], dtype=torch.int64),
            src=Nodes("paper", ids, degree[ids], key),
            dst=Nodes("paper", dst, degree[dst], key),
        )

    def blocks(
        self,
        roots: list[int],
        layers: int,
        sampled_neighbors: dict[int, list[int]] | None = None,
        key: int = 11,
    ) -> list[Block]:
        """Blocks in order of computation, with all or chosen neighbours."""
        blocks: list[Block] = []
        for _ in range(layers):
            block = self.block(roots, sampled_neighbors, key=key)
            blocks.insert(0, block)
            roots = block.src.original.tolist()
        return blocks

    def edges(self, self_loops: bool) -> tuple[Tensor, Tensor]:
        """Sources and destinations of all edges."""
        pairs = [(u, v) for v, row in enumerate(self.neighbors) for u in row]
        pairs += [(v, v) for v in range(self.num_nodes)] if self_loops else []
        src, dst = torch.tensor(pairs, dtype=torch.int64).T
        return src, dst


def attentive(model: Model) -> Model:
    """The model in float64 with parameters of attention that are not zero, as they are at first."""
    for name, parameter in model.named_parameters():
        if "attention" in name:
            torch.nn.init.normal_(parameter)
    return model.double()


def make_rows(graph: Graph, width: int = 6, seed: int = 1) -> Tensor:
    """Random rows of all nodes in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_nodes, width, dtype=torch.float64, generator=generator)


def check_sum_over_roots(
    model: torch.nn.Module, h: Tensor, make_blocks: Callable[[list[int]], list[Block]]
) -> None:
    """Check that rows and gradients of a batch are those of its roots, in smaller batches."""

    def run(roots: list[int]) -> tuple[Tensor, Sequence[Tensor]]:
        blocks = make_blocks(roots)
        out = model(blocks, h[blocks[0].src.original])
        return out, torch.autograd.grad(out.sin().sum(), list(model.parameters()))

    out, gradient = run([4, 17, 39, 8, 21])
    parts = [run(batch) for batch in ([8, 39], [21], [17, 4], [])]
    rows = torch.cat([out for out, _ in parts])
    torch.testing.assert_close(rows, out[[3, 2, 4, 1, 0]], atol=1e-12, rtol=1e-10)
    for index, expected in enumerate(gradient):
        summed = sum(grads[index] for _, grads in parts)
        torch.testing.assert_close(summed, expected, atol=1e-12, rtol=1e-10)


@pytest.fixture
def graph() -> Graph:
    """40 nodes, average degree about 6, node 39 isolated."""
    generator = torch.Generator().manual_seed(4)
    adjacency = (torch.rand(40, 40, generator=generator) < 0.08).triu(1)
    adjacency[:, 39] = False
    adjacency |= adjacency.T.clone()
    return Graph([row.nonzero().flatten().tolist() for row in adjacency])
