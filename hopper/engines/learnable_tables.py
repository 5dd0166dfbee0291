"""The tables of learnable rows that a request asks for, and what of it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cache_server.shard import NPY_ERRORS
from hopper.config import Config
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.hetero.learnable import LearnableTable


def make_tables(request: Request) -> list[LearnableTable]:
    """The tables of learnable rows, and where their rows have their homes: those of the nodes, or,
    where a sub-metatree has tables of its own and relations are divided, the servers that have it.
    """
    config, graph, reads = request.config, request.graph, request.reads
    offsets = {each: graph.book.offsets[stored] for each, stored in reads.types.items()}
    unrolling = reads.unrolling
    if unrolling is not None and graph.holdings and config.learnable.tables == "per_server_table":
        for root, below in unrolling.below.items():
            holders = [root in held.roots for held in graph.holdings]
            for each in {relation.src for relation in below}:
                if unrolling.tables[each] != reads.types[each]:
                    count = graph.book.total(reads.types[each])
                    offsets[each] = np.cumsum([0, *holders]) * count // sum(holders)
    read_as: dict[str, list[str]] = {}
    for name, table in reads.tables.items():
        read_as.setdefault(table, []).append(name)
    return [
        LearnableTable(
            table,
            reads.types[names[0]],
            offsets[names[0]],
            tuple(names),
            _initial_rows(config, reads.types[names[0]]),
            table in reads.frozen,
            config.learnable.deviation,
        )
        for table, names in sorted(read_as.items())
    ]


def _initial_rows(config: Config, node_type: str) -> Path | None:
    """The file of the rows that a type begins with; None where it has none."""
    file = Path(config.learnable.initial) / f"{node_type}.npy"
    return file if config.learnable.initial and file.exists() else None


def check_learnable(request: Request) -> None:
    """Refuse rows to begin with, and rows to leave alone, that do not fit.

    Raises
    ------
    RequestError: names the key, what was expected and what was given.
    """
    config, reads = request.config, request.reads
    own, learned = config.learnable, reads.learned
    reached = {each.node_type for each in reads.inputs.values()}
    unknown = sorted(set(own.types) - reached)
    if unknown:
        raise RequestError(
            f"learnable.types: expected node types that the model reads "
            f"({', '.join(sorted(reached))}), given {', '.join(unknown)}"
        )
    if learned and config.hop.replicas == "independent":
        raise RequestError(
            f"hop.replicas: node type {', '.join(map(repr, learned))} has learnable rows, which "
            'all models share; expected "synchronous"'
        )
    if not config.model.input_weights:
        _check_read_as_they_are(request)
    unknown = sorted(set(own.frozen) - set(learned))
    if unknown:
        raise RequestError(
            f"learnable.frozen: expected node types with learnable rows "
            f"({', '.join(learned)}), given {', '.join(unknown)}"
        )
    if not own.initial:
        return
    files = {each: _initial_rows(config, each) for each in learned}
    if not any(files.values()):
        raise RequestError(
            f"learnable.initial: {own.initial} has none of "
            f"{', '.join(f'{each}.npy' for each in learned)}"
        )
    for each, file in files.items():
        if file is not None:
            width = own.dim or config.model.hidden
            _check_rows(file, (request.schema.node_types[each].count, width))


def _check_read_as_they_are(request: Request) -> None:
    """Refuse rows that need an input projection where there is none."""
    config, featured = request.config, request.reads.featured
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
