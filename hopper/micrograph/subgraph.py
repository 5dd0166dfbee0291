"""A sampled computation graph: cumulative frontiers and the edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology


class HopEdges(NamedTuple):
    """The drawn in-edges of one relation at one hop, in CSC over frontier rows."""

    indptr: NDArray[np.int64]
    """[destinations + 1] int64"""
    indices: NDArray[np.int64]
    """[edges] int64, rows of the source type's frontier"""
    positions: NDArray[np.int64]
    """[edges] int64, position in the destination's canonical neighbour list"""


@dataclass(frozen=True)
class Subgraph:
    """The k-hop sampled computation graph of a set of roots.

    Frontiers are cumulative (design.md, invariant 1): a node keeps its row from the hop that found
    it on, so ``nodes[T][:sizes[l][T]]`` is the frontier before hop l and the roots come first.
    """

    target: str
    nodes: dict[str, NDArray[np.int64]]
    """per type: [n] int64 global ids, in order of discovery"""
    sizes: list[dict[str, int]]
    """[hops + 1] frontier sizes by type; ``sizes[0]`` are the roots"""
    hops: list[dict[Relation, HopEdges]]
    """[hops] drawn edges by relation"""
    topologies: Mapping[Relation, Topology]
    original_ids: Mapping[str, NDArray[np.int64]]
    iteration_key: int

    @property
    def num_roots(self) -> int:
        """Number of roots."""
        return self.sizes[0][self.target]

    @property
    def num_edges(self) -> int:
        """Number of drawn edges over all hops and relations."""
        return sum(edges.indices.size for hop in self.hops for edges in hop.values())

    def hetero_blocks(self, device: torch.device | None = None) -> list[dict[Relation, Block]]:
        """Blocks in order of computation: the deepest hop first, the roots' hop last."""
        original = {t: torch.from_numpy(self.original_ids[t][ids]) for t, ids in self.nodes.items()}
        degrees = {
            relation: self._degrees(relation, topology)
            for relation, topology in self.topologies.items()
        }
        blocks = []
        for hop in range(len(self.hops) - 1, -1, -1):
            blocks.append(
                {
                    relation: self._block(hop, relation, original, degrees[relation], device)
                    for relation in self.hops[hop]
                }
            )
        return blocks

    def blocks(self, device: torch.device | None = None) -> list[Block]:
        """Blocks of a graph with a single relation, in order of computation.

        Raises
        ------
        ValueError: the graph has several relations.
        """
        if len(self.topologies) != 1:
            raise ValueError(f"one relation expected, the graph has {len(self.topologies)}")
        return [next(iter(hop.values())) for hop in self.hetero_blocks(device)]

    def _degrees(self, relation: Relation, topology: Topology) -> tuple[Tensor, Tensor]:
        src = torch.from_numpy(topology.out_degrees[self.nodes[relation.src]])
        dst = torch.from_numpy(topology.in_degrees[self.nodes[relation.dst]])
        return src, dst

    def _block(
        self,
        hop: int,
        relation: Relation,
        original: dict[str, Tensor],
        degrees: tuple[Tensor, Tensor],
        device: torch.device | None,
    ) -> Block:
        edges = self.hops[hop][relation]
        num_src = self.sizes[hop + 1][relation.src]
        num_dst = self.sizes[hop][relation.dst]
        block = Block(
            relation=relation,
            num_src=num_src,
            num_dst=num_dst,
            indptr=torch.from_numpy(edges.indptr),
            indices=torch.from_numpy(edges.indices),
            positions=torch.from_numpy(edges.positions),
            src_original=original[relation.src][:num_src],
            dst_original=original[relation.dst][:num_dst],
            src_out_degree=degrees[0][:num_src],
            dst_in_degree=degrees[1][:num_dst],
            iteration_key=self.iteration_key,
        )
        return block if device is None else block.to(device)
