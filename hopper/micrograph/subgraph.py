"""A sampled computation graph: cumulative frontiers and the edges between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.timed_draw import count_until
from hopper.device_copies import to_device
from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.kernel_threads import threads_for
from hopper.micrograph.pairs import Pairs
from hopper.ops import StoredRows

_NO_FEATURES: Final[Mapping[Relation, Tensor]] = {}


class HopEdges(NamedTuple):
    """The drawn in-edges of one relation at one hop, in CSC over frontier rows."""

    indptr: NDArray[np.int64]
    """[destinations + 1] int64"""
    indices: NDArray[np.int64]
    """[edges] int64, rows of the source type's frontier"""
    positions: NDArray[np.int64]
    """[edges] int64, position in the destination's canonical neighbour list"""


@dataclass(frozen=True)
class DrawnEdges:
    """The edges of a relation whose features are read.

    Attributes
    ----------
    relation: as it is stored.
    ids: [n] int64, ascending: their places in the relation's CSC.
    hops: by hop, [edges] int64: which of these each drawn edge is.
    """

    relation: Relation
    ids: NDArray[np.int64]
    hops: Sequence[NDArray[np.int64]]

    @property
    def table(self) -> str:
        """That has their features."""
        return str(self.relation)

    @classmethod
    def of(cls, relation: Relation, hops: Sequence[NDArray[np.int64]]) -> DrawnEdges:
        """From the places in the CSC of each hop's edges; some may have been drawn at several."""
        ids = np.unique(np.concatenate(hops))
        return cls(relation, ids, [np.searchsorted(ids, each) for each in hops])


def pick_rows(rows: Tensor, places: NDArray[np.int64]) -> Tensor:
    """[n, dim]: some rows, by their places, as an ordinary tensor where they are."""
    chosen = torch.from_numpy(places)
    if isinstance(rows, StoredRows):
        return rows.pick(chosen).gathered()
    return rows.index_select(0, to_device(places, rows.device))


class Inclusion(Protocol):
    """With which probability a hop's edges are drawn, where it is not sampled / in-degree."""

    @property
    def equally_likely(self) -> bool:
        """Whether all in-edges of a destination have the same probability."""

    def inverse_probability(
        self, block: Block, sources: NDArray[np.int64], destinations: NDArray[np.int64]
    ) -> Tensor:
        """[edges] float64: one over the probability of each edge of a block.

        Parameters
        ----------
        sources, destinations: [num_src] and [num_dst] int64 global ids of the block's nodes.
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
    drawn: Sequence[Mapping[Relation, NDArray[np.int64]]] = ()
    """[hops] by relation of which some edges are stored elsewhere: [destinations] int64, how many
    in-edges of each were drawn in all"""
    pairs: Pairs | None = None
    """what is made of the roots, where links are predicted"""
    times: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """per type, where roots have times: [n] that of the root that a node is there for; a node may
    have several rows then, one a time"""
    in_degrees: Mapping[Relation, NDArray[np.int64]] = field(default_factory=dict)
    """by relation with times, some of which other servers have: [destinations of the last hop]
    in-degrees at the roots' times"""
    edges: Mapping[Relation, DrawnEdges] = field(default_factory=dict)
    """by relation, the edges whose features are read"""

    @property
    def num_roots(self) -> int:
        """Number of roots."""
        return self.sizes[0][self.target]

    @property
    def roots(self) -> NDArray[np.int64]:
        """[roots] int64 global ids."""
        return self.nodes[self.target][: self.num_roots]

    @property
    def num_edges(self) -> int:
        """Number of drawn edges over all hops and relations."""
        return sum(edges.indices.size for hop in self.hops for edges in hop.values())

    def stored(self, relation: Relation) -> Relation:
        """What is stored for a relation that goes by a name of its own."""
        return self.drawn_as.get(relation, relation)

    def with_edges(self, relations: Collection[Relation]) -> Subgraph:
        """The same, and which edges of some relations, as they are stored, its hops have."""
        names = [each for each in self.topologies if self.stored(each) in relations]
        if not names:
            return self
        return replace(self, edges={name: self._drawn_edges(name) for name in names})

    def _drawn_edges(self, relation: Relation) -> DrawnEdges:
        topology, nodes = self.topologies[relation], self.nodes[relation.dst]
        hops = [
            topology.edge_places(
                nodes[: size[relation.dst]], hop[relation].indptr, hop[relation].positions
            )
            for size, hop in zip(self.sizes, self.hops, strict=False)
        ]
        return DrawnEdges.of(self.stored(relation), hops)

    def edge_tables(self) -> dict[str, list[NDArray[np.int64]]]:
        """By relation, as it is stored and as ``src/rel/dst``, in groups the ids of the edges whose
        features are read."""
        found: dict[str, list[NDArray[np.int64]]] = {}
        for own in self.edges.values():
            found.setdefault(own.table, []).append(own.ids)
        return found

    def typed_blocks(
        self,
        device: torch.device | None = None,
        edge_features: Mapping[Relation, Tensor] = _NO_FEATURES,
    ) -> list[TypedBlocks]:
        """Blocks in order of computation: the deepest hop first, the roots' hop last.

        Parameters
        ----------
        edge_features: by relation in :attr:`edges`, [ids, dim], on the device.
        """
        facts = _Facts(self, torch.device("cpu") if device is None else device)
        blocks = self._blocks_of(facts)
        for relation, rows in edge_features.items():
            places = self.edges[relation].hops
            for hop, own in zip(reversed(blocks), places, strict=True):
                hop.blocks[relation].edge_features = pick_rows(rows, own)
        return blocks

    def _blocks_of(self, facts: _Facts) -> list[TypedBlocks]:
        return [
            TypedBlocks(
                {relation: SampledBlock(facts, hop, relation) for relation in edges},
                self.sizes[hop + 1],
                self.sizes[hop],
                {each: SampledNodes(facts, each, n) for each, n in self.sizes[hop + 1].items()},
            )
            for hop, edges in reversed(list(enumerate(self.hops)))
        ]

    def blocks(
        self,
        device: torch.device | None = None,
        edge_features: Mapping[Relation, Tensor] = _NO_FEATURES,
    ) -> list[Block]:
        """Blocks of a graph with a single relation, in order of computation; parameters as of
        :meth:`typed_blocks`.

        Raises
        ------
        ValueError: the graph has several relations.
        """
        if len(self.topologies) != 1:
            raise ValueError(f"one relation expected, the graph has {len(self.topologies)}")
        hops = self.typed_blocks(device, edge_features)
        return [block for hop in hops for block in hop.blocks.values()]


class _Facts:
    """Original ids and degrees of a subgraph's nodes, looked up once for all of its blocks.

    Attributes
    ----------
    device: where blocks are computed on.
    """

    def __init__(self, subgraph: Subgraph, device: torch.device) -> None:
        self.subgraph, self.device = subgraph, device
        self._found: dict[object, NDArray[np.int64]] = {}

    def original(self, node_type: str) -> NDArray[np.int64]:
        """[nodes] original ids of a type's nodes."""
        if node_type not in self._found:
            subgraph = self.subgraph
            ids = np.take(subgraph.original_ids[node_type], subgraph.nodes[node_type])
            self._found[node_type] = ids
        return self._found[node_type]

    def degrees(self, relation: Relation, *, into: bool) -> NDArray[np.int64]:
        """[rows] in-degrees of all destinations, or out-degrees of all sources, that a block of a
        relation can have."""
        key = relation, into
        if key not in self._found:
            self._found[key] = self._look_up(relation, into=into)
        return self._found[key]

    def _look_up(self, relation: Relation, *, into: bool) -> NDArray[np.int64]:
        subgraph = self.subgraph
        topology = subgraph.topologies[relation]
        if not into and subgraph.times:
            raise RequestError(
                f"out-degrees of {relation.src}: not known at a root's time; expected a model that "
                'reads none, or another sampler.kind than "temporal"'
            )
        if not into:
            return np.take(topology.out_degrees, subgraph.nodes[relation.src])
        # The last hop's discoveries are never destinations.
        count = subgraph.sizes[-2][relation.dst]
        nodes = subgraph.nodes[relation.dst][:count]
        if relation in subgraph.in_degrees:
            return subgraph.in_degrees[relation]
        if subgraph.times and topology.times is not None:
            until = subgraph.times[relation.dst][:count]
            with threads_for(count):
                return count_until(topology.indptr, topology.times, nodes, until)
        return np.take(topology.in_degrees, nodes)


class SampledNodes(Nodes):
    """The first nodes of a type in a subgraph. Facts are looked up when they are first asked for:
    few models read all of them, and each is a random access per node.

    Parameters
    ----------
    node_type: as the subgraph has it.
    relation, into: under which degrees count, and at which end; None = under no relation.
    """

    def __init__(
        self,
        facts: _Facts,
        node_type: str,
        count: int,
        relation: Relation | None = None,
        *,
        into: bool = False,
    ) -> None:
        self._facts, self._name, self._count = facts, node_type, count
        self._relation, self._into = relation, into
        self.node_type = facts.subgraph.stored_as.get(node_type, node_type)
        self.iteration_key = facts.subgraph.iteration_key

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not there yet.
        if name == "original":
            found = self._facts.original(self._name)
        elif name != "degree":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        elif self._relation is None:
            self.degree = None
            return None
        else:
            found = self._facts.degrees(self._relation, into=self._into)
        setattr(self, name, to_device(found[: self._count], self._facts.device))
        return getattr(self, name)

    @property
    def count(self) -> int:
        """See :class:`Nodes`."""
        return self._count

    def first(self, count: int) -> Nodes:
        """See :class:`Nodes`."""
        own = SampledNodes(self._facts, self._name, count, self._relation, into=self._into)
        own.iteration_key = self.iteration_key
        return own


class SampledBlock(Block):
    """A block that copies its edges to a device, as its nodes' facts are looked up, when they are
    first asked for: layers that merge their relations copy merged edges alone.

    Parameters
    ----------
    hop: its number. relation: as the subgraph has it.
    """

    def __init__(self, facts: _Facts, hop: int, relation: Relation) -> None:
        subgraph = facts.subgraph
        self._edges, self._on = subgraph.hops[hop][relation], facts.device
        self._made: dict[str, Tensor] = {}
        """edges on the device, shared with copies of the block"""
        self.num_src = subgraph.sizes[hop + 1][relation.src]
        self.num_dst = subgraph.sizes[hop][relation.dst]
        self.prepared = {}
        self.relation = subgraph.drawn_as.get(relation, relation)
        self.src = SampledNodes(facts, relation.src, self.num_src, relation)
        self.dst = SampledNodes(facts, relation.dst, self.num_dst, relation, into=True)
        self._inclusion = subgraph.inclusions[hop]
        self._sources = subgraph.nodes[relation.src]
        self._destinations = subgraph.nodes[relation.dst]
        drawn = subgraph.drawn[hop].get(relation) if subgraph.drawn else None
        self.drawn = None if drawn is None else to_device(drawn, self._on)
        if self._inclusion is not None:
            self.equally_likely = self._inclusion.equally_likely

    @property
    def device(self) -> torch.device:
        """See :class:`Edges`."""
        return self._on

    def edges_on_host(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """See :class:`Edges`."""
        indptr, indices, _ = self._edges
        return (indptr, indices) if isinstance(indptr, np.ndarray) else None

    @property
    def draws_a_fixed_number(self) -> bool:
        """See :class:`Block`."""
        return self._inclusion is None

    def inverse_probability(self, dtype: torch.dtype) -> Tensor:
        """See :class:`Block`."""
        if self._inclusion is not None and self.drawn_inverse is None:
            ends = self._sources[: self.num_src], self._destinations[: self.num_dst]
            self.drawn_inverse = self._inclusion.inverse_probability(self, *ends)
        return super().inverse_probability(dtype)

    def __getattr__(self, name: str) -> Tensor:
        # Called only for what is not there yet.
        if name not in HopEdges._fields:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name not in self._made:
            # Where edges were drawn on the device, no copy is made.
            self._made[name] = to_device(getattr(self._edges, name), self._on)
        setattr(self, name, self._made[name])
        return self._made[name]
