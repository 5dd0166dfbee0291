"""Neighbor sampling that does not depend on how the graph is divided.

The neighbors drawn for node u at hop l of iteration t are a pure function of
(seed, epoch, t, l, relation, u). So a mini-batch's subgraph is exactly the union of its
micrographs, whichever ranks sample them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import DROPOUT, NEIGHBORS, draw_key, key_of, node_keys
from cache_server.draws.neighbor_lists import NOTHING, NeighborLists
from cache_server.draws.spec import DrawKey, Drawn, ExcludedEdges, Method, SamplingSpec
from cache_server.kernel import read_only
from hopper.device.kernel_threads import threads_for
from hopper.errors import ConfigError, RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology
from hopper.micrograph.elsewhere import AskedDraw, DrawsElsewhere
from hopper.micrograph.frontier_kernels import draw_hop_of_part, keep_edges
from hopper.micrograph.frontiers import Frontier, FrontierPool, NodeVersions, Versions
from hopper.micrograph.subgraph import HopEdges, Inclusion, StoredNames, Subgraph

Roots = Ids | Mapping[str, Ids]
"""global ids of the target type, or by node type"""
_MOST_NODES = np.iinfo(np.int32).max


class SamplerOptions(TypedDict, total=False):
    """The keyword arguments of every sampler."""

    names: StoredNames
    """the names of relations and types that are stored under others"""
    hops: Mapping[Relation, int]
    """by relation, the number of first hops at which it is drawn; missing = all"""
    fanouts_of: Mapping[Relation, Sequence[int]]
    """by relation, fanouts of its own, as many as there are hops; 0 = it is not drawn"""
    dropout_seed: int | None
    """first word of the key of dropout masks; None = the seed of draws"""
    draws_once: bool
    """whether a node draws the same neighbors at every hop"""
    dependence: int
    """for how many iterations a node's draws stay the same; missing = 1"""


@dataclass(frozen=True)
class _Batch:
    """A subgraph as far as it is known while its hops are drawn."""

    moment: tuple[int, int]
    """epoch and iteration"""
    frontiers: Mapping[str, Frontier]
    counts: Sequence[dict[Relation, Ids]]
    """:attr:`Subgraph.drawn`"""
    in_degrees: dict[Relation, Ids] = field(default_factory=dict)
    """:attr:`Subgraph.in_degrees`"""


class NeighborSampler(NodeVersions):
    """Node-wise sampling without replacement: ``fanouts[l]`` in-neighbors a relation at hop l.

    Safe to call from several threads at once. It is the base class of all samplers. A derived class
    overrides :meth:`how` to choose one of the methods that servers know, or :meth:`draw` to draw in
    any way that needs no server. It may also override how likely an edge is (:attr:`inclusions`)
    and what a frontier has rows for (:class:`NodeVersions`).

    Parameters
    ----------
    topologies: CSC of every relation, in global ids.
    original_ids: per node type, [count] int64, original id of every global id.
    target: node type of the roots.
    fanouts: one per hop, first hop first; -1 takes all neighbors.
    seed: first word of every draw's key.
    options: keywords of :class:`SamplerOptions`.

    Raises
    ------
    ConfigError: a fanout is zero or below -1, or there are no fanouts.
    RequestError: a node type has too many nodes.
    """

    reads_weights: ClassVar[bool] = False
    """whether draws depend on weights of edges"""
    reads_times: ClassVar[bool] = False
    """whether draws depend on the times of roots"""
    size_key: ClassVar[str] = "fanouts"
    """the key of ``[sampler]`` that has the numbers per hop"""

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
                f"neighbors) per layer, got {list(fanouts)}"
            )
        for node_type, ids in original_ids.items():
            if ids.size > _MOST_NODES:
                raise RequestError(
                    f"node type {node_type!r} has {ids.size} nodes; at most {_MOST_NODES} can be "
                    "sampled"
                )
        super().__init__(original_ids)
        self._whole_ids: dict[str, Ids] = {}
        # Several names of a relation share its topology.
        views = {id(topology): topology.read_only() for topology in topologies.values()}
        self.topologies = {name: views[id(topologies[name])] for name in sorted(topologies)}
        self.target = target
        self.fanouts = tuple(fanouts)
        self.seed = seed
        self.names = options.get("names", StoredNames())
        self._hops = options.get("hops", {})
        self._fanouts_of = options.get("fanouts_of", {})
        dropout_seed = options.get("dropout_seed")
        self.dropout_seed = seed if dropout_seed is None else dropout_seed
        self._draws_once = options.get("draws_once", False)
        self._dependence = options.get("dependence", 1)
        self.inclusions: Sequence[Inclusion | None] = [None] * len(fanouts)
        """the result of :meth:`inclusions_at` if it is the same for all iterations"""
        self.exclude: Callable[[tuple[int, int]], Mapping[Relation, ExcludedEdges]] | None = None
        """called with (epoch, iteration): by stored relation, the edges that may not be drawn"""
        self.elsewhere: DrawsElsewhere | None = None
        """draws from in-edges that other servers store; None = all are here"""
        self._pool = FrontierPool()
        self._lists: dict[Relation, NeighborLists] = {}

    @classmethod
    def draws_elsewhere(cls, options: Mapping[str, Any]) -> bool:
        """Return whether servers can make this sampler's draws for ranks.

        Parameters
        ----------
        options: the values of ``sampler.kind_options``.
        """
        return cls.draw is NeighborSampler.draw

    @classmethod
    def check(cls, *, typed: bool, draws_alone: bool, where: str) -> None:
        """Refuse models and layouts that this sampler cannot draw for.

        Parameters
        ----------
        typed: whether the model reads several relations.
        draws_alone: whether every rank has the whole topology.
        where: name of the graph, for errors.

        Raises
        ------
        RequestError: names the key, what was expected and what was given.
        """

    def sample(self, roots: Roots, epoch: int, iteration: int) -> Subgraph:
        """Sample the subgraph of distinct roots.

        Parameters
        ----------
        roots: [n] int64 distinct global ids of the target type, or such ids by node type. n may be
            0.

        Raises
        ------
        ValueError: a root occurs twice, or does not exist.
        """
        by_type = roots if isinstance(roots, Mapping) else {self.target: roots}
        for node_type, ids in by_type.items():
            self._check_roots(ids, node_type)
        versions = {
            node_type: self.versions(node_type, np.ascontiguousarray(ids, dtype=np.int64))
            for node_type, ids in by_type.items()
        }
        return self.sample_versions(versions, epoch, iteration)

    def sample_versions(
        self, roots: Mapping[str, Versions], epoch: int, iteration: int, *, once: bool = False
    ) -> Subgraph:
        """Sample the subgraph of roots that are given as versions.

        Parameters
        ----------
        roots: by node type, [n] int64 distinct versions.
        once: whether a hop expands only the versions that the hop before it has found, as PyG does
            (:attr:`Subgraph.once`).

        Raises
        ------
        ValueError: a version occurs twice.
        """
        with self._pool.begin(self.original_ids, self.row_table) as frontiers:
            for node_type, versions in roots.items():
                frontiers[node_type].enter(versions)
                if frontiers[node_type].size != versions.size:
                    raise ValueError("a root occurs twice in one batch")
            batch = _Batch((epoch, iteration), frontiers, [{} for _ in self.fanouts])
            sizes, hops = [{name: frontier.size for name, frontier in frontiers.items()}], []
            for hop in range(len(self.fanouts)):
                hops.append(self._expand(hop, batch, sizes[hop - 1] if once and hop else {}))
                sizes.append({name: frontier.size for name, frontier in frontiers.items()})
            reached = {name: frontier.versions for name, frontier in frontiers.items()}
        subgraph = self._subgraph(reached, sizes, hops, batch.moment)
        return replace(subgraph, drawn=batch.counts, in_degrees=batch.in_degrees, once=once)

    def _check_roots(self, roots: Ids, node_type: str) -> None:
        count = self.original_ids[node_type].size
        if roots.size and not 0 <= roots.min() <= roots.max() < count:
            raise ValueError(
                f"roots: expected ids in [0, {count}), got {roots.min()} to {roots.max()}"
            )

    def _expand(
        self, hop: int, batch: _Batch, known: Mapping[str, int]
    ) -> dict[Relation, HopEdges]:
        """Draw one hop of every relation, and add new sources to the frontiers.

        The first ``known`` versions of a type are not expanded.
        """
        destinations = {
            node_type: frontier.versions[known.get(node_type, 0) :]
            for node_type, frontier in batch.frontiers.items()
        }
        drawn_everywhere, edges = self._draw_everywhere(hop, destinations, batch), {}
        for relation in self.topologies:
            of_relation, topology = destinations[relation.dst], self.topologies[relation]
            if not self.is_drawn(relation, hop):
                none = np.empty(0, np.int64)
                edges[relation] = HopEdges(np.zeros(of_relation.size + 1, np.int64), none, none)
                continue
            drawn = drawn_everywhere.pop(relation, None)
            if drawn is None:
                drawn = self.draw(hop, relation, of_relation, batch.moment)
            if topology.positions is not None:
                fanout = self.fanout(hop, relation)
                degrees = topology.in_degrees[self.nodes_of(relation.dst, of_relation)]
                counts = degrees if fanout < 0 else np.minimum(degrees, fanout)
                batch.counts[hop][relation] = counts
            elif topology.has_gaps:
                nodes = self.nodes_of(relation.dst, of_relation)
                batch.counts[hop][relation] = np.diff(drawn[0])
                drawn_edges = topology.edge_indices(nodes, drawn[0], drawn[2])
                drawn = keep_edges(drawn, topology.indices[drawn_edges] >= 0)
            offsets, sources, positions = drawn
            rows = batch.frontiers[relation.src].enter(sources)
            edges[relation] = HopEdges(offsets, rows, positions)
        return edges

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> SamplingSpec:
        """Return how a relation's in-edges are drawn at a hop, by ranks and servers alike.

        Parameters
        ----------
        moment: epoch and iteration.
        """
        return self.make_spec("uniform", NEIGHBORS, hop, relation, moment)

    def make_spec(
        self, method: Method, use: int, hop: int, relation: Relation, moment: tuple[int, int]
    ) -> SamplingSpec:
        """Return a draw by a method, with the hop's fanout and the key of a use."""
        key = self.hop_key(use, moment, hop, relation)
        return SamplingSpec(method, self.fanout(hop, relation), key)

    def draw(
        self, hop: int, relation: Relation, destinations: Ids, moment: tuple[int, int]
    ) -> Drawn:
        """Draw the in-edges of some destinations.

        Parameters
        ----------
        destinations: [n] int64 versions.
        moment: epoch and iteration.

        Returns
        -------
        The edges, with versions as sources.
        """
        drawn = self._draw_here(hop, relation, destinations, moment)
        return self.in_versions(relation, destinations, drawn)

    def hop_key(self, use: int, moment: tuple[int, int], hop: int, relation: Relation) -> DrawKey:
        """Return what nodes' keys at a hop of a relation are made of (docs/inside/draws.md)."""
        relation_key = self.names.relation(relation).draw_key()
        hop = 0 if self._draws_once else hop
        return draw_key(use, self.seed, *moment, hop, relation_key, self._dependence)

    def node_keys(
        self, use: int, moment: tuple[int, int], hop: int, relation: Relation, originals: Ids
    ) -> NDArray[np.uint64]:
        """Return [n] uint64: the keys of nodes' draws, for samplers that draw something more.

        Parameters
        ----------
        use: a number from 1000 on that says what is drawn.
        moment: epoch and iteration.
        originals: [n] int64 original ids.
        """
        return node_keys(self.hop_key(use, moment, hop, relation), read_only(originals))

    def is_drawn(self, relation: Relation, hop: int) -> bool:
        """Return whether a relation is drawn at a hop."""
        is_reached = hop < self._hops.get(relation, len(self.fanouts))
        return is_reached and self.fanout(hop, relation) != 0

    def fanout(self, hop: int, relation: Relation) -> int:
        """Return how many in-neighbors of a relation are drawn at a hop; -1 = all."""
        return self._fanouts_of.get(relation, self.fanouts)[hop]

    def excluded(self, relation: Relation, moment: tuple[int, int]) -> ExcludedEdges:
        """Return the edges of a relation that an iteration may not draw.

        For draws in time the places are those in order of time.
        """
        by_relation = {} if self.exclude is None else self.exclude(moment)
        return by_relation.get(self.names.relation(relation), NOTHING)

    def inclusions_at(self, moment: tuple[int, int]) -> Sequence[Inclusion | None]:
        """Return the probabilities of edges per hop of an iteration.

        None stands for a hop at which a fixed number of edges is drawn, or all of them.

        Parameters
        ----------
        moment: epoch and iteration.
        """
        return self.inclusions

    def _draw_here(
        self, hop: int, relation: Relation, destinations: Versions, moment: tuple[int, int]
    ) -> Drawn:
        """Draw from lists that are here, as :meth:`draw` does, with global ids as sources."""
        topology, spec = self.topologies[relation], self.how(hop, relation, moment)
        nodes = self.nodes_of(relation.dst, destinations)
        until = self.times_of(relation.dst, destinations)
        excluded = self.excluded(relation, moment)
        with threads_for(nodes.size):
            if topology.positions is not None and excluded is NOTHING:
                lists = topology.indptr, topology.indices, topology.positions, topology.in_degrees
                ids = self.whole_ids(relation.dst)
                return draw_hop_of_part(*lists, ids, read_only(nodes), spec.fanout, spec.key)
            return self.lists(relation).draw(nodes, spec, excluded, until)

    def whole_ids(self, node_type: str) -> Ids:
        """Return the original ids of all nodes of a type, for kernels; made at the first call."""
        if node_type not in self._whole_ids:
            self._whole_ids[node_type] = read_only(np.asarray(self.original_ids[node_type]))
        return self._whole_ids[node_type]

    def lists(self, relation: Relation) -> NeighborLists:
        """Return the neighbor lists of a relation that are here."""
        if relation not in self._lists:
            src, dst = self.original_ids[relation.src], self.original_ids[relation.dst]
            together = sum(topology.drawn_bytes for topology in self.topologies.values())
            self._lists[relation] = self.topologies[relation].lists(src, dst, together)
        return self._lists[relation]

    def _draw_everywhere(
        self, hop: int, destinations: Mapping[str, Versions], batch: _Batch
    ) -> dict[Relation, Drawn]:
        """Draw a hop of every relation on this rank and other servers at the same time; nothing if
        this rank draws alone."""
        if self.elsewhere is None:
            return {}
        asked: dict[Relation, AskedDraw] = {}
        for relation in self.topologies:
            if self.is_drawn(relation, hop):
                versions = destinations[relation.dst]
                nodes = self.nodes_of(relation.dst, versions)
                asked[relation] = AskedDraw(
                    self.names.relation(relation),
                    self.how(hop, relation, batch.moment),
                    nodes,
                    self.lists(relation).stored.contains(nodes),
                    self.times_of(relation.dst, versions),
                    self.excluded(relation, batch.moment),
                )
        draws, wait = self.elsewhere.begin(asked)
        drawn: dict[Relation, Drawn] = {}
        for relation, draw in draws.items():
            versions_here = draw.pick_here(destinations[relation.dst])
            drawn[relation] = self._draw_here(hop, relation, versions_here, batch.moment)
        wait()
        for relation, draw in draws.items():
            nodes, until = asked[relation].nodes, asked[relation].until
            if until is not None and self.topologies[relation].times is not None:
                nodes_here, until_here = draw.pick_here(nodes), draw.pick_here(until)
                in_degrees_here = self.lists(relation).count_until(nodes_here, until_here)
                batch.in_degrees[relation] = draw.in_degrees(in_degrees_here)
            versions, stitched = destinations[relation.dst], draw.stitch(drawn[relation])
            drawn[relation] = self.in_versions(relation, versions, stitched)
        return drawn

    def _subgraph(
        self,
        versions: Mapping[str, Versions],
        sizes: list[dict[str, int]],
        hops: list[dict[Relation, HopEdges]],
        moment: tuple[int, int],
    ) -> Subgraph:
        """Make the subgraph of one batch from its frontiers and edges."""
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
            names=self.names,
            times=times,
        )


def dropout_key(seed: int, epoch: int, iteration: int) -> int:
    """Return the uint64 key that an iteration's dropout masks extend (docs/inside/draws.md)."""
    return key_of(DROPOUT, seed, epoch, iteration)
