"""What the hops of a configuration's model read of a typed graph, and where learnable rows are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cache_server.shard import NPY_ERRORS
from hopper.config import Config
from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema
from hopper.hetero.learnable import LearnableTable
from hopper.hetero.unroll import By, Unrolling, unroll
from hopper.partition import PartitionedGraph

if TYPE_CHECKING:
    from hopper.hetero.metatree import Metatree

_TOLD_APART_BY: Final[dict[str, By | None]] = {
    "tied": None,
    "per_server_table": "root",
    "per_relation": "relation",
}


def metatree_of(config: Config, schema: GraphSchema) -> Metatree:
    """What the model's hops follow from the target."""
    # networkx adds a fifth of a second to the start of every rank; most models need none.
    from hopper.hetero.metagraph import make_metagraph
    from hopper.hetero.metatree import make_metatree

    own = config.model
    return make_metatree(make_metagraph(schema), schema.target_type(), own.layers, own.metapaths)


def typed_inputs(config: Config, schema: GraphSchema) -> dict[str, int]:
    """By node type that the model's hops reach, the width of its features or learnable rows."""
    tree = metatree_of(config, schema)
    learned = config.learnable.dim or config.model.hidden
    return {
        each: schema.node_types[each].feature_dim or learned for each in tree.types_of(tree.roots)
    }


def unrolling_of(config: Config, schema: GraphSchema) -> Unrolling | None:
    """The names of places in the metatree, where a type is another one at another place."""
    if not config.model.typed:
        return None
    by = _TOLD_APART_BY[config.learnable.tables] if _without_features(config, schema) else None
    by_depth = bool(config.model.metapaths)
    if by is None and not by_depth:
        return None
    return unroll(metatree_of(config, schema), by_depth=by_depth, by=by)


def learnable_tables(config: Config, schema: GraphSchema) -> dict[str, str]:
    """By name of a type in subgraphs, the table of its learnable rows; of those that have any."""
    if not config.model.typed:
        return {}
    bare, unrolling = _without_features(config, schema), unrolling_of(config, schema)
    if unrolling is None:
        return {each: each for each in bare}
    return {each: unrolling.tables[each] for each, own in unrolling.types.items() if own in bare}


def frozen_tables(config: Config, schema: GraphSchema) -> set[str]:
    """The tables whose rows are not learned after all."""
    unrolling = unrolling_of(config, schema)
    stored = {} if unrolling is None else unrolling.types
    return {
        table
        for name, table in learnable_tables(config, schema).items()
        if stored.get(name, name) in config.learnable.frozen
    }


def initial_rows(config: Config, node_type: str) -> Path | None:
    """The file of the rows that a type begins with; None where it has none."""
    file = Path(config.learnable.initial) / f"{node_type}.npy"
    return file if config.learnable.initial and file.exists() else None


def check_learnable(config: Config, schema: GraphSchema) -> None:
    """Refuse rows to begin with, and rows to leave alone, that do not fit.

    Raises
    ------
    RequestError: names the key, what was expected and what was given.
    """
    own, bare = config.learnable, _without_features(config, schema)
    if not config.model.input_weights:
        _check_read_as_they_are(config, schema, bare)
    unknown = sorted(set(own.frozen) - set(bare))
    if unknown:
        raise RequestError(
            f"learnable.frozen: expected node types without features that the model reads "
            f"({', '.join(bare)}), given {', '.join(unknown)}"
        )
    if not own.initial:
        return
    files = {each: initial_rows(config, each) for each in bare}
    if not any(files.values()):
        raise RequestError(
            f"learnable.initial: {own.initial} has none of "
            f"{', '.join(f'{each}.npy' for each in bare)}"
        )
    for each, file in files.items():
        if file is not None:
            _check_rows(file, (schema.node_types[each].count, own.dim or config.model.hidden))


def _check_read_as_they_are(config: Config, schema: GraphSchema, bare: list[str]) -> None:
    """Refuse rows that need an input projection where there is none."""
    featured = sorted(set(typed_inputs(config, schema)) - set(bare))
    if featured:
        raise RequestError(
            "model.input_weights: false wants a learnable row of every node, given node type "
            f"{', '.join(featured)} with features; expected true"
        )
    if config.learnable.dim not in (0, config.model.hidden):
        raise RequestError(
            f"learnable.dim: rows that no projection follows are model.hidden wide; expected "
            f"{config.model.hidden} or 0, given {config.learnable.dim}"
        )


def _check_rows(file: Path, expected: tuple[int, int]) -> None:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, *NPY_ERRORS) as error:
        raise RequestError(
            f"learnable.initial: {file}: not a readable .npy file: {error}"
        ) from None
    if not isinstance(rows, np.ndarray):
        raise RequestError(
            f"learnable.initial: {file}: expected one .npy array, given an archive of several"
        )
    if rows.shape != expected or not np.issubdtype(rows.dtype, np.floating):
        raise RequestError(
            f"learnable.initial: {file}: expected floats {list(expected)} (nodes, learnable.dim), "
            f"given {rows.dtype} {list(rows.shape)}"
        )


def make_tables(config: Config, graph: PartitionedGraph) -> list[LearnableTable]:
    """The tables of learnable rows, and where their rows have their homes: those of the nodes, or,
    where a sub-metatree has tables of its own and relations are divided, the servers that have it.
    """
    schema, unrolling = graph.schema, unrolling_of(config, graph.schema)
    stored = {each: each for each in schema.node_types} if unrolling is None else unrolling.types
    offsets = {each: graph.book.offsets[own] for each, own in stored.items()}
    if unrolling is not None and graph.holdings and config.learnable.tables == "per_server_table":
        for root, below in unrolling.below.items():
            holders = [root in held.roots for held in graph.holdings]
            for each in {relation.src for relation in below}:
                if unrolling.tables[each] != stored[each]:
                    count = graph.book.total(stored[each])
                    offsets[each] = np.cumsum([0, *holders]) * count // sum(holders)
    frozen = frozen_tables(config, schema)
    read_as: dict[str, list[str]] = {}
    for name, table in learnable_tables(config, schema).items():
        read_as.setdefault(table, []).append(name)
    return [
        LearnableTable(
            table,
            stored[names[0]],
            offsets[names[0]],
            tuple(names),
            initial_rows(config, stored[names[0]]),
            table in frozen,
            config.learnable.deviation,
        )
        for table, names in sorted(read_as.items())
    ]


def _without_features(config: Config, schema: GraphSchema) -> list[str]:
    """The node types that the model's hops reach and that have no features."""
    reached = typed_inputs(config, schema)
    return [each for each in reached if not schema.node_types[each].feature_dim]
