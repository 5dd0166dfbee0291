"""A sampled computation graph: cumulative frontiers and the edges between them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device_copies import to_device
from hopper.graph.block import Block, TypedBlocks
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


class Inclusion(Protocol):
    """With which probability a hop's edges are drawn, where it is not sampled / in-degree."""

    @property
    def equally_likely(self) -> bool:
        """Whether all in-edges of a destination have the same probability."""

    def inverse_probability(self, block: Block, sources: NDArray[np.int64]) -> Tensor:
        """[edges] float64: one over the probability of each edge of a block.

        Parameters
        ----------
        sources: [num_src] int64 global ids of the block's sources.
        """


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
    inclusions: Sequence[Inclusion | None]
    """[hops] probabilities of the edges; None where a fixed number was drawn, or all"""
    drawn_as: Mapping[Relation, Relation] = field(default_factory=dict)
    """relations that are another under a name of their own: which, as their blocks tell it"""
    stored_as: Mapping[str, str] = field(default_factory=dict)
    """node types that are"""
    fanouts: Sequence[int] = ()
    """[hops] as of the sampler; read where some of a destination's edges are elsewhere"""

    @property
    def num_roots(self) -> int:
        """Number of roots."""
        return self.sizes[0][self.target]

    @property
    def num_edges(self) -> int:
        """Number of drawn edges over all hops and relations."""
        return sum(edges.indices.size for hop in self.hops for edges in hop.values())

    def typed_blocks(self, device: torch.device | None = None) -> list[TypedBlocks]:
        """Blocks in order of computation: the deepest hop first, the roots' hop last."""
        facts = NodeFacts(self)
        return [
            TypedBlocks(
                {relation: SampledBlock(self, hop, relation, facts, device) for relation in edges},
                self.sizes[hop + 1],
                self.sizes[hop],
                OriginalIds(facts, self.sizes[hop + 1], device),
                self.iteration_key,
                self.stored_as,
            )
            for hop, edges in reversed(list(enumerate(self.hops)))
        ]

    def blocks(self, device: torch.device | None = None) -> list[Block]:
        """Blocks of a graph with a single relation, in order of computation.

        Raises
        ------
        ValueError: the graph has several relations.
        """
        if len(self.topologies) != 1:
            raise ValueError(f"one relation expected, the graph has {len(self.topologies)}")
        return [block for hop in self.typed_blocks(device) for block in hop.blocks.values()]


class NodeFacts:
    """Original ids and degrees of a subgraph's nodes, looked up once for all of its blocks."""

    NAMES = ("src_original", "dst_original", "src_out_degree", "dst_in_degree")

    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        self._found: dict[tuple[str, object], Tensor] = {}

    def find(self, name: str, relation: Relation) -> Tensor:
        """[rows] int64, for all rows that a block of this relation can have."""
        node_type = relation.src if name.startswith("src") else relation.dst
        kind = name.partition("_")[2]
        if kind == "original":
            return self.original(node_type)
        key = (kind, relation)
        if key not in self._found:
            self._found[key] = torch.from_numpy(self._look_up(kind, node_type, relation))
        return self._found[key]

    def original(self, node_type: str) -> Tensor:
        """[nodes] int64 original ids of a type's nodes."""
        key = ("original", node_type)
        if key not in self._found:
            subgraph = self._subgraph
            found = np.take(subgraph.original_ids[node_type], subgraph.nodes[node_type])
            self._found[key] = torch.from_numpy(found)
        return self._found[key]

    def _look_up(self, kind: str, node_type: str, relation: Relation) -> NDArray[np.int64]:
        subgraph = self._subgraph
        nodes = subgraph.nodes[node_type]
        if kind == "out_degree":
            return np.take(subgraph.topologies[relation].out_degrees, nodes)
        # The last hop's discoveries are never destinations.
        destinations = nodes[: subgraph.sizes[-2][node_type]]
        return np.take(subgraph.topologies[relation].in_degrees, destinations)


class OriginalIds(Mapping[str, Tensor]):
    """Original ids of a hop's sources by type, looked up when asked for: few models read them."""

    def __init__(
        self, facts: NodeFacts, sizes: Mapping[str, int], device: torch.device | None
    ) -> None:
        self._facts = facts
        self._sizes = sizes
        self._device = device

    def __getitem__(self, node_type: str) -> Tensor:
        found = self._facts.original(node_type)[: self._sizes[node_type]]
        return found if self._device is None else to_device(found, self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


class SampledBlock(Block):
    """A block that looks facts about its nodes up, and copies its edges to a device, when they are
    first asked for.

    Few models read all of them: each fact is a random access per node, and layers that merge their
    relations copy merged edges alone.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        hop: int,
        relation: Relation,
        facts: NodeFacts,
        device: torch.device | None,
    ) -> None:
        edges = subgraph.hops[hop][relation]
        self.relation = subgraph.drawn_as.get(relation, relation)
        self._stored_as = relation
        self.num_src = subgraph.sizes[hop + 1][relation.src]
        self.num_dst = subgraph.sizes[hop][relation.dst]
        self._edges = edges
        self._made: dict[str, Tensor] = {}
        """edges on the device, shared with copies of the block"""
        self._on = torch.device("cpu") if device is None else device
        self.iteration_key = subgraph.iteration_key
        self.prepared = {}
        self._facts = facts
        self._inclusion = subgraph.inclusions[hop]
        self._sources = subgraph.nodes[relation.src]
        if subgraph.topologies[relation].positions is not None:
            fanout, degrees = subgraph.fanouts[hop], self.dst_in_degree
            self.drawn = degrees if fanout < 0 else degrees.clamp(max=fanout)
        if self._inclusion is not None:
            self.equally_likely = self._inclusion.equally_likely

    def sources_alone(self, count: int) -> SampledBlock:
        """The first ``count`` sources, without edges and destinations: what row-wise modules are
        keyed by."""
        alone = copy.copy(self)
        none = np.empty(0, np.int64)
        alone.num_src, alone.num_dst = count, 0
        alone._edges, alone._made = HopEdges(np.zeros(1, np.int64), none, none), {}
        alone._inclusion = alone.drawn = None
        alone.prepared = {}
        for known in (*NodeFacts.NAMES, *HopEdges._fields):
            # Looked up for all nodes and edges.
            alone.__dict__.pop(known, None)
        return alone

    @property
    def device(self) -> torch.device:
        """See :class:`Block`."""
        return self._on

    def edges_on_host(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """See :class:`Block`."""
        indptr, indices, _ = self._edges
        return (indptr, indices) if isinstance(indptr, np.ndarray) else None

    @property
    def draws_a_fixed_number(self) -> bool:
        """See :class:`Block`."""
        return self._inclusion is None

    def inverse_probability(self, dtype: torch.dtype) -> Tensor:
        """See :class:`Block`."""
        if self._inclusion is not None and self.drawn_inverse is None:
            sources = self._sources[: self.num_src]
            self.drawn_inverse = self._inclusion.inverse_probability(self, sources)
        return super().inverse_probability(dtype)

    def __getattr__(self, name: str) -> Tensor:
        # Called only for what is not there yet.
        if name in HopEdges._fields:
            # Where edges were drawn on the device, no copy is made.
            if name not in self._made:
                array = getattr(self._edges, name)
                self._made[name] = to_device(array, self._on)
            value = self._made[name]
        elif name in NodeFacts.NAMES:
            rows = self.num_src if name.startswith("src") else self.num_dst
            value = to_device(self._facts.find(name, self._stored_as)[:rows], self._on)
        else:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        setattr(self, name, value)
        return value
