"""The part of a graph that a model reads: relations and node types by hop, and its input rows.

It follows from configuration and graph, and is determined once. All code that samples, reads rows,
plans or builds the model takes it from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from hopper.config import Config
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.metatree import Metatree, make_metatree
from hopper.hetero.unroll import By, Unrolling, rename_partitions, unroll
from hopper.partition.description import ServerPartition

_Name = TypeVar("_Name", str, Relation)
_TOLD_APART_BY: Final[dict[str, By | None]] = {
    "tied": None,
    "per_server_table": "root",
    "per_relation": "relation",
}


@dataclass(frozen=True)
class InputSpec:
    """The input rows of a node type: features, followed by learnable rows.

    Attributes
    ----------
    node_type: the stored node type.
    features: the width of the features; 0 = none.
    learned: the width of the learnable rows; 0 = none.
    table: the table of the learnable rows; empty if there are none.
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
    layers: by layer, in order of computation, the names of the relations that it aggregates and of
        the types of its destinations.
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
    layers: tuple[tuple[tuple[Relation, ...], tuple[str, ...]], ...]
    inputs: Mapping[str, InputSpec]
    frozen: frozenset[str] = frozenset()
    edges: Mapping[Relation, int] = field(default_factory=dict)
    partitions: tuple[ServerPartition, ...] = ()
    unrolling: Unrolling | None = None
    tree: Metatree | None = None

    @property
    def stored_layers(self) -> list[tuple[tuple[Relation, ...], tuple[str, ...]]]:
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
        """The stored tables of features, by the name that plans use.

        They are the node types with features, and as ``src/rel/dst`` the relations whose edges'
        features are read.
        """
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
    if not config.model.typed:
        return _find_one_relation(config, schema)
    model, target = config.model, schema.target_type()
    others = schema.root_types[1:]
    tree = make_metatree(schema, target, model.layers, model.metapaths, others)
    reached = tree.reached_types
    hops = list(reversed(range(model.layers)))
    unrolling = _name_places(config, schema, tree)
    types: Mapping[str, str]
    stored_as: Mapping[Relation, Relation]
    if unrolling is None:
        types, stored_as = _same_names(schema.node_types), _same_names(relations)
        inputs = _find_inputs(config, schema, _same_names(reached), None)
    else:
        types, stored_as = unrolling.types, unrolling.relations
        inputs = _find_inputs(config, schema, types, unrolling.tables)
        partitions = rename_partitions(partitions, unrolling)
    return ModelReads(
        target=target,
        types=types,
        relations=stored_as,
        layers=tuple((unrolling or tree).read_at(hop) for hop in hops),
        inputs=inputs,
        frozen=_frozen_tables(config, inputs),
        edges=_edge_widths(config, schema, [tree.read_at(hop) for hop in hops]),
        partitions=tuple(partitions),
        unrolling=unrolling,
        tree=tree,
    )


def _find_one_relation(config: Config, schema: GraphSchema) -> ModelReads:
    """Determine what a model of one node type and one relation reads."""
    target, relations = schema.target_type(), _same_names(schema.ordered_relations())
    layers = ((tuple(relations), (target,)),) * config.model.layers
    inputs = _find_inputs(config, schema, {target: target}, None)
    types, frozen = _same_names(schema.node_types), _frozen_tables(config, inputs)
    edges = _edge_widths(config, schema, layers)
    return ModelReads(target, types, relations, layers, inputs, frozen, edges)


def _edge_widths(
    config: Config,
    schema: GraphSchema,
    layers: Iterable[tuple[Iterable[Relation], Iterable[str]]],
) -> dict[Relation, int]:
    """Return the width of edges' features, by relation whose features the model reads."""
    if not config.model.edge_features:
        return {}
    read = sorted({relation for relations, _ in layers for relation in relations})
    widths = {relation: schema.relations[relation].feature_dim for relation in read}
    return {relation: width for relation, width in widths.items() if width is not None}


def _name_places(config: Config, schema: GraphSchema, tree: Metatree) -> Unrolling | None:
    """Name the places of the metatree that the model distinguishes; None if it does not."""
    reached, by_depth = tree.reached_types, bool(config.model.metapaths)
    is_learned = any(_learned_width(config, schema, node_type) for node_type in reached)
    by = _TOLD_APART_BY[config.learnable.tables] if is_learned else None
    if by is None and not by_depth:
        return None
    return unroll(tree, by_depth=by_depth, by=by)


def _same_names(names: Iterable[_Name]) -> dict[_Name, _Name]:
    return {name: name for name in names}


def _find_inputs(
    config: Config,
    schema: GraphSchema,
    types: Mapping[str, str],
    tables: Mapping[str, str] | None,
) -> dict[str, InputSpec]:
    """Return the input rows of each type, by name, given its stored type and its table."""
    inputs = {}
    for name, stored in types.items():
        features = schema.node_types[stored].feature_dim or 0
        learned = _learned_width(config, schema, stored)
        table = (stored if tables is None else tables[name]) if learned else ""
        inputs[name] = InputSpec(stored, features, learned, table)
    return inputs


def _learned_width(config: Config, schema: GraphSchema, node_type: str) -> int:
    """Return the width of a type's learnable rows; 0 = it has none."""
    if schema.node_types[node_type].feature_dim and node_type not in config.learnable.types:
        return 0
    return config.learnable.dim or config.model.hidden


def _frozen_tables(config: Config, inputs: Mapping[str, InputSpec]) -> frozenset[str]:
    frozen = config.learnable.frozen
    return frozenset(rows.table for rows in inputs.values() if rows.node_type in frozen) - {""}
