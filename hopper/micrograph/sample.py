"""Placement-invariant neighbour sampling (design.md, invariant 1).

The neighbours drawn for node u at hop l of iteration t are a pure function of
(seed, epoch, t, l, relation, u), so a mini-batch's subgraph is exactly the union of its
micrographs, whoever samples them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import DROPOUT, NEIGHBOURS, key_of
from cache_server.hop_draw import Drawn, HopDraw, Method
from cache_server.in_edges import NeighbourLists
from cache_server.left_out import LeftOut
from hopper.errors import ConfigError, RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.kernel_threads import threads_for
from hopper.micrograph import frontier
from hopper.micrograph.elsewhere import AskedDraw, DrawsElsewhere
from hopper.micrograph.row_tables import DenseTable, RowTable
from hopper.micrograph.subgraph import HopEdges, Inclusion, Subgraph

Roots = NDArray[np.int64] | Mapping[str, NDArray[np.int64]]
"""of the target type, or by type"""
Versions = NDArray[np.int64]
"""of nodes of a type: :meth:`NeighborSampler.versions`"""
_MOST_NODES = np.iinfo(np.int32).max


@dataclass(frozen=True)
class StoredNames:
    """What is stored for relations and node types that go by names of their own.

    Attributes
    ----------
    relations: by name, whose draws theirs are. types: by name, whose rows theirs are. What is
        missing is stored under its name.
    """

    relations: Mapping[Relation, Relation] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    def relation(self, name: Relation) -> Relation:
        """What is stored for a relation."""
        return self.relations.get(name, name)

    def node_type(self, name: str) -> str:
        """What is stored for a node type."""
        return self.types.get(name, name)


class SamplerOptions(TypedDict, total=False):
    """What every sampler takes by keyword.

    names: of relations and types that are stored under others.
    hops: by relation that is not drawn at every hop, at how many, the first ones.
    dropout_seed: first word of the key of dropout masks; None = the seed of draws.
    """

    names: StoredNames
    hops: Mapping[Relation, int]
    dropout_seed: int | None


class NeighborSampler:
    """Node-wise sampling without replacement, ``fanouts[l]`` in-neighbours a relation at hop l.

    Safe to call from several threads at once. Other placement-invariant samplers derive from it and
    say how a hop is drawn (:meth:`how`, by one of the methods that servers know, or :meth:`draw`,
    in any way that a rank can by itself), how likely an edge is (:attr:`inclusions`), and what a
    frontier has a row for (:meth:`versions`).

    Parameters
    ----------
    topologies: CSC of every relation, in global ids.
    original_ids: per node type, [count] int64, original id of every global id.
    target: node type of the roots.
    fanouts: one per hop, first hop first; -1 takes all neighbours.
    seed: first word of every draw's key.
    options: see :class:`SamplerOptions`.

    Raises
    ------
    ConfigError: a fanout is zero or below -1, or there is none.
    RequestError: a node type has more nodes than a frontier row can name.
    """

    reads_weights: ClassVar[bool] = False
    """whether draws depend on weights of edges"""
    reads_times: ClassVar[bool] = False
    """whether what is drawn for a node depends on the root that it is drawn for, by its time"""
    size_key: ClassVar[str] = "fanouts"
    """the key of ``[sampler]`` that gives the numbers per hop"""

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, NDArray[np.int64]],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        if not fanouts or any(fanout == 0 or fanout < -1 for fanout in fanouts):
            raise ConfigError(
                f"sampler.{self.size_key}: expected one positive number (or -1 for all "
                f"neighbours) per layer, got {list(fanouts)}"
            )
        for node_type, ids in original_ids.items():
            if ids.size > _MOST_NODES:
                raise RequestError(
                    f"node type {node_type!r} has {ids.size} nodes; at most {_MOST_NODES} can be "
                    "sampled"
                )
        self.topologies = dict(sorted(topologies.items()))
        self.original_ids = dict(original_ids)
        self.target = target
        self.fanouts = tuple(fanouts)
        self.seed = seed
        names = options.get("names", StoredNames())
        self.drawn_as, self.stored_as = names.relations, names.types
        self._hops = options.get("hops", {})
        dropout_seed = options.get("dropout_seed")
        self.dropout_seed = seed if dropout_seed is None else dropout_seed
        self.inclusions: Sequence[Inclusion | None] = [None] * len(fanouts)
        """what :meth:`inclusions_at` tells, where it is the same for all iterations"""
        self.left_out: Callable[[tuple[int, int]], Mapping[Relation, LeftOut]] | None = None
        """by epoch and iteration, by relation as it is stored: edges that are not drawn"""
        self.elsewhere: DrawsElsewhere | None = None
        """draws among in-edges that other servers have; None: they are all here"""
        self._spare_tables: list[dict[str, RowTable]] = []
        self._lock = threading.Lock()

    @classmethod
    def draws_elsewhere(cls, options: Mapping[str, Any]) -> bool:
        """Whether servers can draw for ranks what it draws, with these options of its own."""
        return cls.draw is NeighborSampler.draw

    @classmethod
    def check(cls, *, typed: bool, draws_alone: bool, where: str) -> None:
        """Refuse models and layouts that it cannot draw for.

        Parameters
        ----------
        typed: whether the model reads several relations.
        draws_alone: whether a rank has the topology that it draws from.
        where: the graph, for errors.

        Raises
        ------
        RequestError: names the key, what was expected and what was given.
        """

    def sample(self, roots: Roots, epoch: int, iteration: int) -> Subgraph:
        """Sample the subgraph of distinct roots.

        Parameters
        ----------
        roots: [n] int64 global ids of the target type, distinct; n may be 0. Or those of several
            types.

        Raises
        ------
        ValueError: a root occurs twice, or is outside its type.
        """
        by_type = roots if isinstance(roots, Mapping) else {self.target: roots}
        for node_type, ids in by_type.items():
            self._check_roots(ids, node_type)
        found = {
            node_type: self.versions(node_type, np.ascontiguousarray(ids, dtype=np.int64))
            for node_type, ids in by_type.items()
        }
        return self.sample_versions(found, epoch, iteration)

    def sample_versions(
        self, roots: Mapping[str, Versions], epoch: int, iteration: int
    ) -> Subgraph:
        """Sample the subgraph of distinct versions of roots, by type.

        Raises
        ------
        ValueError: one occurs twice.
        """
        tables = self._take_tables()
        nodes = {t: [np.empty(0, np.int64)] for t in self.original_ids}
        drawn: list[dict[Relation, NDArray[np.int64]]] = [{} for _ in self.fanouts]
        in_degrees: dict[Relation, NDArray[np.int64]] = {}
        sizes = [dict.fromkeys(self.original_ids, 0)]
        try:
            for node_type, own in roots.items():
                self._enter(own, node_type, nodes, sizes[0], tables)
                if sizes[0][node_type] != own.size:
                    raise ValueError("a root occurs twice in one batch")
            hops = [
                self._expand(hop, (epoch, iteration), nodes, sizes, drawn[hop], in_degrees, tables)
                for hop in range(len(self.fanouts))
            ]
        finally:
            self._give_tables_back(tables, nodes)
        found = {t: np.concatenate(parts) for t, parts in nodes.items()}
        made = self._subgraph(found, sizes, hops, (epoch, iteration), drawn)
        return replace(made, in_degrees=in_degrees) if in_degrees else made

    @property
    def version_dtype(self) -> np.dtype[Any]:
        """That every version fits."""
        return np.dtype(np.int32)

    def versions(self, node_type: str, roots: NDArray[np.int64]) -> Versions:
        """[n] int64: what frontiers hold of some roots. Most samplers draw for a node what they
        draw, whichever root it is for: a node has one version, which is its global id."""
        return roots

    def versions_at(
        self, node_type: str, nodes: NDArray[np.int64], times: NDArray[np.int64] | None
    ) -> Versions:
        """[n] int64: the versions of nodes for roots of some times, where these have any."""
        return nodes

    def nodes_of(self, node_type: str, versions: Versions) -> NDArray[np.int64]:
        """[n] int64 global ids: whose versions these are."""
        return versions

    def times_of(self, node_type: str, versions: Versions) -> NDArray[np.int64] | None:
        """[n] int64: the times of the roots that these are for; None where there are none."""
        return None

    def source_versions(
        self, relation: Relation, destinations: Versions, drawn: Drawn
    ) -> NDArray[np.int64]:
        """[edges] int64: the versions of the sources that were drawn for some destinations."""
        return drawn[1]

    def row_table(self, node_type: str) -> RowTable:
        """One for the versions of a type's nodes."""
        return DenseTable(self.original_ids[node_type].size)

    def nodes_and_times(
        self, versions: Mapping[str, Versions]
    ) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
        """By type, the nodes of versions, and their roots' times where there are any."""
        times = {each: self.times_of(each, own) for each, own in versions.items()}
        return (
            {each: self.nodes_of(each, own) for each, own in versions.items()},
            {each: own for each, own in times.items() if own is not None},
        )

    def _subgraph(
        self,
        versions: Mapping[str, Versions],
        sizes: list[dict[str, int]],
        hops: list[dict[Relation, HopEdges]],
        moment: tuple[int, int],
        drawn: Sequence[Mapping[Relation, NDArray[np.int64]]] = (),
    ) -> Subgraph:
        """What was found of one batch, with all that the sampler knows of it."""
        nodes, times = self.nodes_and_times(versions)
        return Subgraph(
            target=self.target,
            nodes=nodes,
            sizes=sizes,
            hops=hops,
            topologies=self.topologies,
            original_ids=self.original_ids,
            iteration_key=dropout_key(self.dropout_seed, *moment),
            inclusions=self.inclusions_at(moment),
            drawn_as=self.drawn_as,
            stored_as=self.stored_as,
            times=times,
            drawn=drawn,
        )

    def _check_roots(self, roots: NDArray[np.int64], node_type: str) -> None:
        count = self.original_ids[node_type].size
        if roots.size and not 0 <= roots.min() <= roots.max() < count:
            raise ValueError(
                f"roots: expected ids in [0, {count}), got {roots.min()} to {roots.max()}"
            )

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> HopDraw:
        """How the in-edges of a relation are drawn at a hop, whoever draws them.

        Parameters
        ----------
        moment: epoch and iteration.
        """
        return self.drawn_by("uniform", NEIGHBOURS, hop, relation, moment)

    def drawn_by(
        self, method: Method, use: int, hop: int, relation: Relation, moment: tuple[int, int]
    ) -> HopDraw:
        """A method, with the hop's fanout, and its key for a use."""
        return HopDraw(method, self.fanouts[hop], int(self.hop_key(use, moment, hop, relation)))

    def draw(
        self,
        hop: int,
        relation: Relation,
        destinations: NDArray[np.int64],
        moment: tuple[int, int],
    ) -> Drawn:
        """Draw the in-edges of some destinations.

        Parameters
        ----------
        destinations: [n] int64 versions; sources are told as versions too.
        moment: epoch and iteration.
        """
        return self._in_versions(
            relation, destinations, self._draw_here(hop, relation, destinations, moment)
        )

    def _in_versions(self, relation: Relation, destinations: Versions, drawn: Drawn) -> Drawn:
        """What was drawn, with versions of sources instead of their global ids."""
        return drawn[0], self.source_versions(relation, destinations, drawn), drawn[2]

    def _draw_here(
        self, hop: int, relation: Relation, destinations: Versions, moment: tuple[int, int]
    ) -> Drawn:
        """As :meth:`draw`, with global ids of sources."""
        topology, how = self.topologies[relation], self.how(hop, relation, moment)
        nodes = self.nodes_of(relation.dst, destinations)
        until = self.times_of(relation.dst, destinations)
        lacking = self.lacking(relation, moment)
        with threads_for(nodes.size):
            if topology.positions is not None and lacking is None:
                lists = topology.indptr, topology.indices, topology.positions, topology.in_degrees
                originals, key = self.original_ids[relation.dst], np.uint64(how.key)
                return frontier.draw_hop_of_part(*lists, originals, nodes, how.fanout, key)
            arrays = None if lacking is None else lacking.arrays
            return self._lists(relation).draw(nodes, how, arrays, until)

    def _lists(self, relation: Relation) -> NeighbourLists:
        """What a relation's neighbours are drawn from here."""
        topology = self.topologies[relation]
        return NeighbourLists(
            topology.indptr,
            topology.indices,
            self.original_ids[relation.src],
            self.original_ids[relation.dst],
            topology.weight_sums,
            topology.alias_table,
            topology.times,
            topology.by_time,
        )

    def lacking(self, relation: Relation, moment: tuple[int, int]) -> LeftOut | None:
        """The edges of a relation that an iteration may not draw; in draws in time by the places
        that these have by time."""
        found = {} if self.left_out is None else self.left_out(moment)
        return found.get(self.drawn_as.get(relation, relation))

    def inclusions_at(self, moment: tuple[int, int]) -> Sequence[Inclusion | None]:
        """Per hop of an iteration, the probabilities of edges; None where a fixed number is drawn
        (or all are).

        Parameters
        ----------
        moment: epoch and iteration.
        """
        return self.inclusions

    def is_drawn(self, relation: Relation, hop: int) -> bool:
        """Whether a relation is drawn at a hop."""
        return hop < self._hops.get(relation, len(self.fanouts))

    def hop_key(self, use: int, moment: tuple[int, int], hop: int, relation: Relation) -> np.uint64:
        """The key that a node's draws at one hop of one relation extend (docs/draws.md)."""
        relation = self.drawn_as.get(relation, relation)
        return np.uint64(key_of(use, self.seed, *moment, hop, relation.draw_key()))

    def _expand(
        self,
        hop: int,
        moment: tuple[int, int],
        nodes: dict[str, list[NDArray[np.int64]]],
        sizes: list[dict[str, int]],
        counts: dict[Relation, NDArray[np.int64]],
        in_degrees: dict[Relation, NDArray[np.int64]],
        tables: Mapping[str, RowTable],
    ) -> dict[Relation, HopEdges]:
        """Draw one hop of every relation; appends to ``nodes`` and ``sizes``, and tells ``counts``
        how many were drawn where some edges are stored elsewhere, and ``in_degrees`` the degrees of
        all destinations at their times, where some of these are known elsewhere."""
        frontiers = {t: np.concatenate(parts) for t, parts in nodes.items()}
        reached = dict(sizes[-1])
        edges = {}
        drawn = {}
        if self.elsewhere is not None:
            drawn = self._draw_everywhere(self.elsewhere, hop, frontiers, moment, in_degrees)
        for relation in self.topologies:
            destinations = frontiers[relation.dst]
            if not self.is_drawn(relation, hop):
                none = np.empty(0, np.int64)
                edges[relation] = HopEdges(np.zeros(destinations.size + 1, np.int64), none, none)
                continue
            found = drawn.pop(relation, None) or self.draw(hop, relation, destinations, moment)
            offsets, sources, positions = self._stored(found, hop, relation, destinations, counts)
            rows = self._enter(sources, relation.src, nodes, reached, tables)
            edges[relation] = HopEdges(offsets, rows, positions)
        sizes.append(reached)
        return edges

    def _draw_everywhere(
        self,
        elsewhere: DrawsElsewhere,
        hop: int,
        frontiers: Mapping[str, Versions],
        moment: tuple[int, int],
        in_degrees: dict[Relation, NDArray[np.int64]],
    ) -> dict[Relation, Drawn]:
        """Draw a hop of every relation that is drawn at it, among in-edges of this server and of
        others, which draw meanwhile; ``in_degrees`` as of :meth:`_expand`."""
        asked = {}
        for each in filter(lambda each: self.is_drawn(each, hop), self.topologies):
            nodes = self.nodes_of(each.dst, frontiers[each.dst])
            asked[each] = AskedDraw(
                self.drawn_as.get(each, each),
                self.how(hop, each, moment),
                nodes,
                self.topologies[each].has_lists(nodes),
                self.times_of(each.dst, frontiers[each.dst]),
                self.lacking(each, moment),
            )
        others = elsewhere.begin(asked)
        here = {
            each: self._draw_here(hop, each, others.here(each, frontiers[each.dst]), moment)
            for each in asked
        }
        for each, own in asked.items():
            if own.until is not None and self.topologies[each].times is not None:
                told = others.here(each, own.nodes), others.here(each, own.until)
                in_degrees[each] = others.in_degrees(each, self._lists(each).count_until(*told))
        return {
            each: self._in_versions(each, frontiers[each.dst], others.stitch(each, found))
            for each, found in here.items()
        }

    def _stored(
        self,
        found: Drawn,
        hop: int,
        relation: Relation,
        destinations: NDArray[np.int64],
        counts: dict[Relation, NDArray[np.int64]],
    ) -> Drawn:
        """Of the edges that were drawn, those that are stored here; where some are not, ``counts``
        is told how many of each destination's were drawn."""
        topology, fanout = self.topologies[relation], self.fanouts[hop]
        if not topology.has_gaps and topology.positions is None:
            return found
        nodes = self.nodes_of(relation.dst, destinations)
        if topology.positions is not None:
            degrees = topology.in_degrees[nodes]
            counts[relation] = degrees if fanout < 0 else np.minimum(degrees, fanout)
            return found
        offsets, _, positions = found
        counts[relation] = np.diff(offsets)
        return frontier.keep(found, topology.has_edges(nodes, offsets, positions))

    @staticmethod
    def _enter(
        versions: Versions,
        node_type: str,
        nodes: dict[str, list[Versions]],
        reached: dict[str, int],
        tables: Mapping[str, RowTable],
    ) -> NDArray[np.int64]:
        """Add unseen versions to a frontier; returns the row of every one."""
        rows, fresh = tables[node_type].discover(versions, reached[node_type])
        nodes[node_type].append(fresh)
        reached[node_type] += fresh.size
        return rows

    def _take_tables(self) -> dict[str, RowTable]:
        with self._lock:
            if self._spare_tables:
                return self._spare_tables.pop()
        return {each: self.row_table(each) for each in self.original_ids}

    def _give_tables_back(
        self, tables: dict[str, RowTable], nodes: Mapping[str, Sequence[Versions]]
    ) -> None:
        for node_type, parts in nodes.items():
            for part in parts:
                tables[node_type].clear(part)
        with self._lock:
            self._spare_tables.append(tables)


def dropout_key(seed: int, epoch: int, iteration: int) -> int:
    """The uint64 key that all dropout masks of an iteration extend (docs/draws.md)."""
    return key_of(DROPOUT, seed, epoch, iteration)
