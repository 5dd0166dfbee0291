"""What a model reads of a graph: relations and node types by hop, and what input rows are made of.

It is worked out once, from configuration and graph, and everything that samples, reads rows, plans
or builds the model takes it from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from hopper.config import Config
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.unroll import By, Unrolling, rename_holdings, unroll
from hopper.partition.layouts import Holding

if TYPE_CHECKING:
    from hopper.hetero.metatree import Metatree

_Name = TypeVar("_Name", str, Relation)
_TOLD_APART_BY: Final[dict[str, By | None]] = {
    "tied": None,
    "per_server_table": "root",
    "per_relation": "relation",
}


@dataclass(frozen=True)
class InputRows:
    """What a node's input row is made of: its features and, behind them, its learnable row.

    Attributes
    ----------
    node_type: whose nodes they are, as it is stored.
    features: width of the features; 0 = none.
    learned: width of the learnable rows; 0 = none.
    table: that the learnable rows stand in; empty where there are none.
    """

    node_type: str
    features: int
    learned: int = 0
    table: str = ""

    @property
    def width(self) -> int:
        """Of the whole row."""
        return self.features + self.learned


@dataclass(frozen=True)
class ModelReads:
    """What a configuration's model reads of a graph.

    A node type or relation that is met at several places, which a model tells apart, has a name at
    each (:mod:`hopper.hetero.unroll`); ordinarily names are those of the graph.

    Attributes
    ----------
    target: node type of the roots.
    types, relations: by name, what is stored.
    layers: by layer, in order of computation, the names of the relations that it aggregates and of
        the types of its destinations.
    inputs: by name of a type that the hops reach, its input rows.
    frozen: the tables of learnable rows that are not learned after all.
    edges: by relation whose edges' features are read, as it is stored, the width of these.
    holdings: by server, what it stores of this, under these names; empty where nodes are divided.
    unrolling: where the names come from; None where they are the graph's.
    tree: what hops follow from the target; None for models of one relation.
    """

    target: str
    types: Mapping[str, str]
    relations: Mapping[Relation, Relation]
    layers: tuple[tuple[tuple[Relation, ...], tuple[str, ...]], ...]
    inputs: Mapping[str, InputRows]
    frozen: frozenset[str] = frozenset()
    edges: Mapping[Relation, int] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    unrolling: Unrolling | None = None
    tree: Metatree | None = None

    @property
    def stored_layers(self) -> list[tuple[tuple[Relation, ...], tuple[str, ...]]]:
        """:attr:`layers` as they are stored, each relation and type once: what has parameters."""
        return [
            (
                tuple(sorted({self.relations[each] for each in relations})),
                tuple(sorted({self.types[each] for each in types})),
            )
            for relations, types in self.layers
        ]

    @property
    def widths(self) -> dict[str, int]:
        """By node type that is reached, as it is stored, the width of its input rows."""
        return {rows.node_type: rows.width for rows in self.inputs.values()}

    @property
    def feature_tables(self) -> dict[str, str]:
        """By name under which plans tell what is read of them, the tables of features: the node
        types that have any, and relations whose edges' features are read, as ``src/rel/dst``."""
        found = {name: own.node_type for name, own in self.inputs.items() if own.features}
        return found | {str(each): str(each) for each in self.edges}

    @property
    def featured(self) -> list[str]:
        """The tables of features that are read, in order of name."""
        return sorted(set(self.feature_tables.values()))

    @property
    def learned(self) -> list[str]:
        """The node types whose learnable rows are read, in order of name."""
        return sorted({each.node_type for each in self.inputs.values() if each.learned})

    @property
    def tables(self) -> dict[str, str]:
        """By name of a type with learnable rows, the table that has them."""
        return {name: rows.table for name, rows in self.inputs.items() if rows.learned}


def find_reads(
    config: Config,
    schema: GraphSchema,
    relations: Sequence[Relation],
    holdings: Sequence[Holding] = (),
) -> ModelReads:
    """What a configuration's model reads of a graph.

    Parameters
    ----------
    relations: those that any server stores.
    holdings: by server, where whole relations were divided.

    Raises
    ------
    RequestError: a metapath does not follow the graph.
    """
    if not config.model.typed:
        return _find_one_relation(config, schema)
    # networkx adds a fifth of a second to the start of every rank; most models need none.
    from hopper.hetero.metagraph import make_metagraph
    from hopper.hetero.metatree import make_metatree

    own, target = config.model, schema.target_type()
    others = schema.root_types[1:]
    tree = make_metatree(make_metagraph(schema), target, own.layers, own.metapaths, others)
    reached = tree.reached
    hops = list(reversed(range(own.layers)))
    unrolling = _tell_places_apart(config, schema, tree)
    if unrolling is None:
        inputs = _inputs(config, schema, _same(reached), None)
        return ModelReads(
            target=target,
            types=_same(schema.node_types),
            relations=_same(relations),
            layers=tuple(tree.read_at(hop) for hop in hops),
            inputs=inputs,
            frozen=_frozen(config, inputs),
            edges=_edges(config, schema, [tree.read_at(hop) for hop in hops]),
            holdings=tuple(holdings),
            tree=tree,
        )
    inputs = _inputs(config, schema, unrolling.types, unrolling.tables)
    return ModelReads(
        target=target,
        types=unrolling.types,
        relations=unrolling.relations,
        layers=tuple(unrolling.read_at(hop) for hop in hops),
        inputs=inputs,
        frozen=_frozen(config, inputs),
        edges=_edges(config, schema, [tree.read_at(hop) for hop in hops]),
        holdings=tuple(rename_holdings(holdings, unrolling)),
        unrolling=unrolling,
        tree=tree,
    )


def _find_one_relation(config: Config, schema: GraphSchema) -> ModelReads:
    """What a model of graphs of one node type reads."""
    target, relations = schema.target_type(), _same(schema.ordered_relations())
    layers = ((tuple(relations), (target,)),) * config.model.layers
    inputs = _inputs(config, schema, {target: target}, None)
    types, frozen = _same(schema.node_types), _frozen(config, inputs)
    edges = _edges(config, schema, layers)
    return ModelReads(target, types, relations, layers, inputs, frozen, edges)


def _edges(
    config: Config,
    schema: GraphSchema,
    layers: Iterable[tuple[Iterable[Relation], Iterable[str]]],
) -> dict[Relation, int]:
    """By relation whose edges' features are read, the width of these."""
    if not config.model.edge_features:
        return {}
    read = sorted({each for relations, _ in layers for each in relations})
    widths = {each: schema.relations[each].feature_dim for each in read}
    return {each: width for each, width in widths.items() if width is not None}


def _tell_places_apart(config: Config, schema: GraphSchema, tree: Metatree) -> Unrolling | None:
    """The names of places in the metatree; None where a type is one wherever it is met."""
    reached, by_depth = tree.reached, bool(config.model.metapaths)
    is_learned = any(_learned_width(config, schema, each) for each in reached)
    by = _TOLD_APART_BY[config.learnable.tables] if is_learned else None
    if by is None and not by_depth:
        return None
    return unroll(tree, by_depth=by_depth, by=by)


def _same(names: Iterable[_Name]) -> dict[_Name, _Name]:
    return {each: each for each in names}


def _inputs(
    config: Config,
    schema: GraphSchema,
    types: Mapping[str, str],
    tables: Mapping[str, str] | None,
) -> dict[str, InputRows]:
    """By name of a type, its input rows.

    Parameters
    ----------
    types: by name, the type that is stored. tables: by name, that of the table of learnable rows;
        None = that of the type.
    """
    found = {}
    for name, stored in types.items():
        features = schema.node_types[stored].feature_dim or 0
        learned = _learned_width(config, schema, stored)
        table = (stored if tables is None else tables[name]) if learned else ""
        found[name] = InputRows(stored, features, learned, table)
    return found


def _learned_width(config: Config, schema: GraphSchema, node_type: str) -> int:
    """The width of a type's learnable rows; 0 = it has none."""
    if schema.node_types[node_type].feature_dim and node_type not in config.learnable.types:
        return 0
    return config.learnable.dim or config.model.hidden


def _frozen(config: Config, inputs: Mapping[str, InputRows]) -> frozenset[str]:
    frozen = config.learnable.frozen
    return frozenset(each.table for each in inputs.values() if each.node_type in frozen) - {""}
