"""A sampled computation graph: cumulative frontiers and the edges between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draws.kernels import count_until
from cache_server.kernel import read_only
from hopper.device.copies import to_device
from hopper.device.kernel_threads import threads_for
from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology
from hopper.ops import StoredRows

_NO_FEATURES: Final[Mapping[Relation, Tensor]] = {}


class HopEdges(NamedTuple):
    """The drawn in-edges of one relation at one hop, in CSC over frontier rows."""

    indptr: Ids
    """[destinations + 1] int64"""
    indices: Ids
    """[edges] int64, rows of the source type's frontier"""
    positions: Ids
    """[edges] int64, position in the destination's canonical neighbour list"""

    def destinations(self) -> Ids:
        """Return [edges] int64: the destination row of each edge."""
        return np.repeat(np.arange(self.indptr.size - 1), np.diff(self.indptr))


@dataclass(frozen=True)
class DrawnEdges:
    """The drawn edges of one relation whose features are read."""

    relation: Relation
    """the stored relation"""
    ids: Ids
    """[n] int64, ascending: indices of the edges in the relation's CSC"""
    hops: Sequence[Ids]
    """by hop, [edges] int64: the index in ``ids`` of each drawn edge"""

    @property
    def table(self) -> str:
        """The name of the table with the edges' features."""
        return str(self.relation)


@dataclass(frozen=True)
class Pairs:
    """Labelled edges; or links, each with k negatives that it should score higher than."""

    versions: Mapping[str, Ids]
    """by node type, in the order that all ranks use, [n], ascending: the distinct ends, which are
    the roots"""
    heads: Ids
    tails: Ids
    """indices of the ends in the concatenated ``versions``: of links [links, 1 + k] each, where
    column 0 is the link itself, of labelled edges [edges]"""
    relations: Ids
    """[links] index of each link's relation among the target relations"""
    labels: NDArray[Any]
    """of links [links, 1 + k] float32: 1 for the link, 0 for a negative, -1 for a pair that does
    not count; of labelled edges [edges, 1 or classes], as stored"""


def pick_rows(rows: Tensor, places: Ids) -> Tensor:
    """Return the rows at ``places`` ([n] int64) as an ordinary tensor on the rows' device."""
    if isinstance(rows, StoredRows):
        return rows.pick(torch.from_numpy(places)).to_tensor()
    return rows.index_select(0, to_device(places, rows.device))


class Inclusion(Protocol):
    """The probabilities of a hop's edges, where they are not sampled degree / in-degree."""

    @property
    def equally_likely(self) -> bool:
        """Return whether all in-edges of a destination have the same probability."""

    def inverse_probability(self, block: Block, sources: Ids, destinations: Ids) -> Tensor:
        """Return [edges] float64: one over the probability of each edge of a block, whose nodes
        have the global ids ``sources`` [num_src] and ``destinations`` [num_dst] int64."""


@dataclass(frozen=True)
class StoredNames:
    """The stored names of relations and node types that a model knows under other names. Any other
    name is stored as it is."""

    relations: Mapping[Relation, Relation] = field(default_factory=dict)
    """by name, the stored relation, whose draws are used"""
    types: Mapping[str, str] = field(default_factory=dict)
    """by name, the stored node type, whose rows are used"""

    def relation(self, name: Relation) -> Relation:
        """Return the stored relation of a name."""
        return self.relations.get(name, name)

    def node_type(self, name: str) -> str:
        """Return the stored node type of a name."""
        return self.types.get(name, name)


@dataclass(frozen=True)
class Subgraph:
    """The k-hop sampled computation graph of a set of roots.

    Frontiers are cumulative: a node keeps its row after the hop that discovered it. So
    ``nodes[T][:sizes[l][T]]`` is the frontier before hop l, and the roots come first.
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
    """[hops] probabilities of the edges; None if a fixed number was drawn, or all were"""
    inverses: Sequence[Mapping[Relation, Tensor]] = ()
    """[hops] by relation: [edges] float64, one over the probabilities, where edges are not in the
    order in which inclusions want them"""
    names: StoredNames = StoredNames()
    """the stored names of relations and types, which blocks have"""
    drawn: Sequence[Mapping[Relation, NDArray[np.int64]]] = ()
    """[hops] by relation of which some edges are stored elsewhere: [destinations] int64, how many
    in-edges of each were drawn in all"""
    pairs: Pairs | None = None
    """the links or labelled edges whose ends are the roots, where these are predicted"""
    times: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """by node type, if roots have times: [n] int64, the time of the root that each row is for; a
    node then has a row for each time"""
    in_degrees: Mapping[Relation, NDArray[np.int64]] = field(default_factory=dict)
    """by relation whose times are partly on other servers: [destinations of the last hop] int64
    in-degrees at the roots' times"""
    edges: Mapping[Relation, DrawnEdges] = field(default_factory=dict)
    """by relation, the edges whose features are read"""
    once: bool = False
    """whether hop l has the edges of only those destinations that the hop before it has found, from
    row ``sizes[l - 1]`` on; such subgraphs have no blocks"""

    @property
    def num_roots(self) -> int:
        """The number of roots."""
        return self.sizes[0][self.target]

    @property
    def roots(self) -> Ids:
        """[roots] int64 global ids."""
        return self.nodes[self.target][: self.num_roots]

    @property
    def num_edges(self) -> int:
        """The number of drawn edges over all hops and relations."""
        return sum(edges.indices.size for hop in self.hops for edges in hop.values())

    def shuffled(self, generator: np.random.Generator) -> Subgraph:
        """Return the same computation with the edges of each destination in a random order.

        The edges must be in host memory.
        """
        hops: list[dict[Relation, HopEdges]] = []
        inverses: list[dict[Relation, Tensor]] = []
        for hop, blocks in zip(self.hops, reversed(self.typed_blocks()), strict=True):
            hops.append({})
            inverses.append({})
            for name, edges in hop.items():
                random = generator.random(edges.indices.size)
                order = np.lexsort((random, edges.destinations()))
                hops[-1][name] = HopEdges(
                    edges.indptr, edges.indices[order], edges.positions[order]
                )
                if blocks.blocks[name].draws_a_fixed_number:
                    continue
                inverse = blocks.blocks[name].inverse_probability(torch.float64)
                inverses[-1][name] = inverse[torch.from_numpy(order)]
        read = [self.names.relation(name) for name in self.edges]
        return replace(self, hops=hops, inverses=inverses).with_edges(read)

    def with_edges(self, relations: Collection[Relation]) -> Subgraph:
        """Return this subgraph with :attr:`edges` set for some stored relations."""
        names = [name for name in self.topologies if self.names.relation(name) in relations]
        if not names:
            return self
        return replace(self, edges={name: self._drawn_edges(name) for name in names})

    def _drawn_edges(self, relation: Relation) -> DrawnEdges:
        topology, nodes = self.topologies[relation], self.nodes[relation.dst]
        hops = [
            topology.edge_indices(
                nodes[: size[relation.dst]], hop[relation].indptr, hop[relation].positions
            )
            for size, hop in zip(self.sizes, self.hops, strict=False)
        ]
        ids = np.unique(np.concatenate(hops))
        by_hop = [np.searchsorted(ids, hop_ids) for hop_ids in hops]
        return DrawnEdges(self.names.relation(relation), ids, by_hop)

    def edge_tables(self) -> dict[str, list[Ids]]:
        """Return the ids of the edges whose features are read.

        Returns
        -------
        By stored relation as ``src/rel/dst``, an array of ids for each of its names.
        """
        ids: dict[str, list[Ids]] = {}
        for drawn_edges in self.edges.values():
            ids.setdefault(drawn_edges.table, []).append(drawn_edges.ids)
        return ids

    def typed_blocks(
        self,
        device: torch.device | None = None,
        edge_features: Mapping[Relation, Tensor] = _NO_FEATURES,
    ) -> list[TypedBlocks]:
        """Make the blocks in order of computation: the deepest hop first, the roots' hop last.

        Parameters
        ----------
        device: where blocks are computed; None = CPU.
        edge_features: by relation in :attr:`edges`, [ids, dim], on the device.
        """
        if self.once:
            raise ValueError("a subgraph whose nodes are expanded once has no blocks")
        facts = _NodeFacts(self, torch.device("cpu") if device is None else device)
        blocks = [
            TypedBlocks(
                {relation: SampledBlock(facts, hop, relation) for relation in edges},
                self.sizes[hop + 1],
                self.sizes[hop],
                {t: SampledNodes(facts, t, count) for t, count in self.sizes[hop + 1].items()},
            )
            for hop, edges in reversed(list(enumerate(self.hops)))
        ]
        for relation, rows in edge_features.items():
            by_hop = self.edges[relation].hops
            for hop, indices in zip(reversed(blocks), by_hop, strict=True):
                hop.blocks[relation].edge_features = pick_rows(rows, indices)
        return blocks

    def blocks(
        self,
        device: torch.device | None = None,
        edge_features: Mapping[Relation, Tensor] = _NO_FEATURES,
    ) -> list[Block]:
        """Make the blocks of a graph with a single relation; parameters as :meth:`typed_blocks`.

        Raises
        ------
        ValueError: the graph has several relations.
        """
        if len(self.topologies) != 1:
            raise ValueError(f"one relation expected, the graph has {len(self.topologies)}")
        hops = self.typed_blocks(device, edge_features)
        return [block for hop in hops for block in hop.blocks.values()]


class _NodeFacts:
    """Original ids and degrees of a subgraph's nodes, looked up once for all of its blocks."""

    def __init__(self, subgraph: Subgraph, device: torch.device) -> None:
        self.subgraph, self.device = subgraph, device
        self.original = cache(
            lambda node_type: subgraph.original_ids[node_type][subgraph.nodes[node_type]]
        )
        self.degrees = cache(partial(_look_up_degrees, subgraph))


def _look_up_degrees(subgraph: Subgraph, relation: Relation, into: bool) -> Ids:
    """Return [rows] int64: in-degrees (``into``) of all nodes that are destinations at any hop, or
    out-degrees of all sources."""
    topology = subgraph.topologies[relation]
    if not into and subgraph.times:
        raise RequestError(
            f"out-degrees of {relation.src}: not known at a root's time; expected a model that "
            'reads none, or another sampler.kind than "temporal"'
        )
    if not into:
        return topology.out_degrees[subgraph.nodes[relation.src]]
    if relation in subgraph.in_degrees:
        return subgraph.in_degrees[relation]
    # Nodes that the last hop discovers are never destinations.
    count = subgraph.sizes[-2][relation.dst]
    nodes = subgraph.nodes[relation.dst][:count]
    if subgraph.times and topology.times is not None:
        until = subgraph.times[relation.dst][:count]
        with threads_for(count):
            arrays = topology.indptr, topology.times, topology.rows(nodes), until
            return count_until(*map(read_only, arrays))
    return topology.in_degrees[nodes]


class SampledNodes(Nodes):
    """The first ``count`` nodes of a type in a subgraph.

    Original ids and degrees are looked up at their first use, since few models read both and each
    needs a random access per node.

    Parameters
    ----------
    node_type: the subgraph's name of the type.
    relation: the relation whose degrees the nodes have; None = they have none.
    into: whether these are in-degrees; if not, they are out-degrees.
    """

    def __init__(
        self,
        facts: _NodeFacts,
        node_type: str,
        count: int,
        relation: Relation | None = None,
        *,
        into: bool = False,
    ) -> None:
        self._facts, self._name, self._count = facts, node_type, count
        self._relation, self._into = relation, into
        self.node_type = facts.subgraph.names.node_type(node_type)
        self.iteration_key = facts.subgraph.iteration_key

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that are not set yet.
        if name == "original":
            values = self._facts.original(self._name)
        elif name != "degree":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        elif self._relation is None:
            self.degree = None
            return None
        else:
            values = self._facts.degrees(self._relation, self._into)
        setattr(self, name, to_device(values[: self._count], self._facts.device))
        return getattr(self, name)

    @property
    def count(self) -> int:
        """The number of nodes."""
        return self._count

    def first(self, count: int) -> Nodes:
        """Return the first ``count`` of these nodes."""
        nodes = SampledNodes(self._facts, self._name, count, self._relation, into=self._into)
        nodes.iteration_key = self.iteration_key
        return nodes


class SampledBlock(Block):
    """A block whose edges are copied to the device at their first use: those of a hop, by its
    number, and of a relation, by the subgraph's name of it.

    Layers that merge their relations copy the merged edges only.
    """

    def __init__(self, facts: _NodeFacts, hop: int, relation: Relation) -> None:
        subgraph = facts.subgraph
        self._edges, self._device = subgraph.hops[hop][relation], facts.device
        self._copied: dict[str, Tensor] = {}
        """edges on the device, shared with copies of the block"""
        self.num_src = subgraph.sizes[hop + 1][relation.src]
        self.num_dst = subgraph.sizes[hop][relation.dst]
        self.prepared = {}
        self.relation = subgraph.names.relation(relation)
        self.src = SampledNodes(facts, relation.src, self.num_src, relation)
        self.dst = SampledNodes(facts, relation.dst, self.num_dst, relation, into=True)
        self._inclusion = subgraph.inclusions[hop]
        self._sources = subgraph.nodes[relation.src]
        self._destinations = subgraph.nodes[relation.dst]
        drawn = subgraph.drawn[hop].get(relation) if subgraph.drawn else None
        self.drawn = None if drawn is None else to_device(drawn, self._device)
        if self._inclusion is not None:
            self.equally_likely = self._inclusion.equally_likely
        if subgraph.inverses:
            inverse = subgraph.inverses[hop].get(relation)
            self.drawn_inverse = None if inverse is None else inverse.to(self._device)

    @property
    def device(self) -> torch.device:
        """The device of the block."""
        return self._device

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return len(self._edges.indices)

    def edges_on_host(self) -> tuple[Ids, Ids] | None:
        """Return ``indptr`` and ``indices`` if they are in host memory; None if not."""
        indptr, indices, _ = self._edges
        return (indptr, indices) if isinstance(indptr, np.ndarray) else None

    @property
    def draws_a_fixed_number(self) -> bool:
        """Return whether the hop draws a fixed number of edges for each destination, or all."""
        return self._inclusion is None

    def inverse_probability(self, dtype: torch.dtype) -> Tensor:
        """Return [edges]: one over the probability of each edge, by the hop's inclusion."""
        if self._inclusion is not None and self.drawn_inverse is None:
            ends = self._sources[: self.num_src], self._destinations[: self.num_dst]
            self.drawn_inverse = self._inclusion.inverse_probability(self, *ends)
        return super().inverse_probability(dtype)

    def __getattr__(self, name: str) -> Tensor:
        # Python calls this only for attributes that are not set yet.
        if name not in HopEdges._fields:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name not in self._copied:
            # to_device copies nothing if the edges were drawn on the device.
            self._copied[name] = to_device(getattr(self._edges, name), self._device)
        setattr(self, name, self._copied[name])
        return self._copied[name]
