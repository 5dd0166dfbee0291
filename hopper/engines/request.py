"""A request for training: a configuration, its graph, and the part of it that the model reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from hopper.config import Config
from hopper.config.loading import change_config
from hopper.config.model import ONE_LAYER, TIMELESS_MODELS
from hopper.config.plug_ins import PlugIn
from hopper.graph.columns import FeatureColumn
from hopper.graph.schema import GraphSchema, Labelled, Relation
from hopper.hetero.metatree import Metatree, make_metatree
from hopper.hetero.unroll import By, Unrolling, rename_partitions, unroll
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.samplers import find_sampler
from hopper.partition import PartitionedGraph
from hopper.partition.description import ServerPartition
from hopper.tasks import TrainingLinks

LayerReads = tuple[tuple[Relation, ...], tuple[str, ...]]
"""The relations that a layer aggregates, and the types of its destinations."""
_TOLD_APART_BY: Final[dict[str, By | None]] = {
    "tied": None,
    "per_server_table": "root",
    "per_relation": "relation",
}


@dataclass(frozen=True)
class InputSpec:
    """The input rows of a stored node type: features, followed by learnable rows.

    Widths are 0 where there are none, and then the ``table`` of learnable rows is empty.
    """

    node_type: str
    features: int
    learned: int = 0
    table: str = ""

    @property
    def width(self) -> int:
        """The width of the whole row."""
        return self.features + self.learned


@dataclass(frozen=True)
class ModelReads:
    """The part of a graph that a configuration's model reads.

    Names are usually those of the graph. A model may distinguish the places at which hops reach a
    node type or relation, which then has one name for each place (:mod:`hopper.hetero.unroll`).

    Attributes
    ----------
    target: the node type of the roots.
    types, relations: the stored type or relation, by name.
    layers: in order of computation.
    inputs: the input rows, by name of a type that the hops reach.
    frozen: the tables of learnable rows that training leaves alone.
    edges: the width of edges' features, by stored relation whose features are read.
    partitions: what each server stores, under these names; empty where nodes are divided.
    unrolling: the origin of the names; None if they are the graph's.
    tree: the relations that hops follow from the target; None for models of one relation.
    """

    target: str
    types: Mapping[str, str]
    relations: Mapping[Relation, Relation]
    layers: Sequence[LayerReads]
    inputs: Mapping[str, InputSpec]
    frozen: frozenset[str] = frozenset()
    edges: Mapping[Relation, int] = field(default_factory=dict)
    partitions: Sequence[ServerPartition] = ()
    unrolling: Unrolling | None = None
    tree: Metatree | None = None

    @property
    def stored_layers(self) -> list[LayerReads]:
        """The stored relations and types of :attr:`layers`, each once: those with parameters."""
        return [
            (
                tuple(sorted({self.relations[relation] for relation in relations})),
                tuple(sorted({self.types[name] for name in types})),
            )
            for relations, types in self.layers
        ]

    @property
    def widths(self) -> dict[str, int]:
        """The width of input rows, by stored node type that the hops reach."""
        return {rows.node_type: rows.width for rows in self.inputs.values()}

    @property
    def feature_tables(self) -> dict[str, str]:
        """The stored tables of features, by the name that plans use: that of a node type, or
        ``src/rel/dst`` for the edges of a relation."""
        tables = {name: rows.node_type for name, rows in self.inputs.items() if rows.features}
        return tables | {str(relation): str(relation) for relation in self.edges}

    @property
    def featured(self) -> list[str]:
        """The tables of features that the model reads, sorted by name."""
        return sorted(set(self.feature_tables.values()))

    @property
    def learned(self) -> list[str]:
        """The node types whose learnable rows the model reads, sorted by name."""
        return sorted({rows.node_type for rows in self.inputs.values() if rows.learned})

    @property
    def tables(self) -> dict[str, str]:
        """The table of learnable rows, by name of a type that has any."""
        return {name: rows.table for name, rows in self.inputs.items() if rows.learned}


def find_reads(
    config: Config,
    schema: GraphSchema,
    relations: Sequence[Relation],
    partitions: Sequence[ServerPartition] = (),
) -> ModelReads:
    """Determine what a configuration's model reads of a graph.

    Parameters
    ----------
    relations: the relations that any server stores.
    partitions: what each server stores, where whole relations were divided.
    """
    model, target = config.model, schema.target_type()
    tree: Metatree | None = None
    unrolling: Unrolling | None = None
    stored_layers: list[LayerReads]
    if model.typed:
        others = schema.root_types[1:]
        tree = make_metatree(schema, target, model.layers, model.metapaths, others)
        reached, unrolling = list(tree.reached_types), _name_places(config, schema, tree)
        stored_layers = [tree.read_at(hop) for hop in reversed(range(model.layers))]
    else:
        relations, partitions, reached = schema.ordered_relations(), (), [target]
        stored_layers = [(tuple(relations), (target,))] * model.layers
    if unrolling is None:
        types: Mapping[str, str] = {name: name for name in schema.node_types}
        names: Mapping[Relation, Relation] = {relation: relation for relation in relations}
        inputs, layers = _find_inputs(config, schema, reached), stored_layers
    else:
        types, names = unrolling.types, unrolling.relations
        inputs = _find_inputs(config, schema, types, unrolling)
        layers = [unrolling.read_at(hop) for hop in reversed(range(model.layers))]
        partitions = rename_partitions(partitions, unrolling)
    frozen = {r.table for r in inputs.values() if r.node_type in config.learnable.frozen} - {""}
    read = sorted({relation for of_layer, _ in stored_layers for relation in of_layer})
    widths = {r: schema.relations[r].feature_dim for r in read if model.edge_features}
    return ModelReads(
        target,
        types,
        names,
        layers,
        inputs,
        frozenset(frozen),
        {relation: width for relation, width in widths.items() if width is not None},
        partitions,
        unrolling,
        tree,
    )


def _name_places(config: Config, schema: GraphSchema, tree: Metatree) -> Unrolling | None:
    """Name the places of the metatree that the model distinguishes; None if it does not."""
    by_depth, by = bool(config.model.metapaths), _TOLD_APART_BY[config.learnable.tables]
    if not any(_learned_width(config, schema, node_type) for node_type in tree.reached_types):
        by = None
    return unroll(tree, by_depth=by_depth, by=by) if by or by_depth else None


def _find_inputs(
    config: Config, schema: GraphSchema, names: Iterable[str], unrolling: Unrolling | None = None
) -> dict[str, InputSpec]:
    """Return the input rows of types, by name."""
    inputs = {}
    for name in names:
        stored = table = name
        if unrolling is not None:
            stored, table = unrolling.types[name], unrolling.tables[name]
        learned = _learned_width(config, schema, stored)
        features = schema.node_types[stored].feature_dim or 0
        inputs[name] = InputSpec(stored, features, learned, table if learned else "")
    return inputs


def _learned_width(config: Config, schema: GraphSchema, node_type: str) -> int:
    """Return the width of a type's learnable rows; 0 = it has none."""
    if schema.node_types[node_type].feature_dim and node_type not in config.learnable.types:
        return 0
    return config.learnable.dim or config.model.hidden


@dataclass(frozen=True)
class Request:
    """A configuration and its graph, with what follows from the two.

    All code that checks a run or makes its parts takes a request. What the model reads is therefore
    determined once per process.
    """

    config: Config
    """with the sampler that ``sampler.kind = "auto"`` means for the graph"""
    graph: PartitionedGraph

    def __post_init__(self) -> None:
        """Choose the sampler if the configuration leaves that open."""
        config = self.config
        if config.sampler.kind == "auto":
            is_timeless = config.model.name in (*TIMELESS_MODELS, *ONE_LAYER)
            reads_times = not is_timeless and config.sampler.device == "cpu"
            is_read = any(map(self.schema.is_timed, self.schema.relations))
            kind = "temporal" if reads_times and is_read and not self.timeless_roots else "node"
            object.__setattr__(self, "config", change_config(config, sampler={"kind": kind}))

    @property
    def timeless_roots(self) -> list[Labelled]:
        """The target relations, or else the type of the roots, that have no times."""
        roots: list[Labelled] = [*self.schema.target_relations] or [self.schema.target_type()]
        return [root for root in roots if root not in self.schema.timed]

    @cached_property
    def reads(self) -> ModelReads:
        """The part of the graph that the model reads; raises as :func:`find_reads`."""
        graph = self.graph
        return find_reads(self.config, graph.schema, graph.relations, graph.partitions)

    @cached_property
    def links(self) -> TrainingLinks:
        """The training edges, where edges are predicted."""
        placement = self.graph.placement(self.config.cluster.ranks_per_server)
        return TrainingLinks(self.graph, placement)

    @cached_property
    def sampler(self) -> PlugIn[NeighborSampler]:
        """The class of the sampler, with its options."""
        return find_sampler(self.config.sampler.kind, self.config.sampler.kind_options)

    @property
    def reads_times(self) -> bool:
        """Return whether draws for a node depend on the time of the root."""
        return self.sampler.kind.reads_times

    @property
    def schema(self) -> GraphSchema:
        """The schema of the graph."""
        return self.graph.schema

    @property
    def columns(self) -> dict[str, tuple[FeatureColumn, ...]]:
        """The columns of the features that the model reads, by table."""
        return {name: self.schema.columns[name] for name in self.reads.featured}

    @property
    def where(self) -> str:
        """The graph's directory, as the configuration names it."""
        return self.config.data.partitioned

    @property
    def ranks(self) -> int:
        """The number of ranks that train."""
        return self.graph.book.servers * self.config.cluster.ranks_per_server

    def under(self, config: Config) -> Request:
        """Return a request of another configuration for the same graph.

        It takes over what the model reads, and training edges, if these are the same.
        """
        other, own = Request(config, self.graph), self.config
        if config.cluster.ranks_per_server == own.cluster.ranks_per_server:
            other.__dict__["links"] = self.links
        reads_alike = (config.model, config.learnable) == (own.model, own.learnable)
        if "reads" in self.__dict__ and reads_alike:
            other.__dict__["reads"] = self.reads
        return other
