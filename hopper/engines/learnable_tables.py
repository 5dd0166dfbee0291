"""The tables of learnable rows that a request asks for, and checks of their configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cache_server.store.npy import NPY_ERRORS
from hopper.config import Config
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.hetero.learnable import LearnableTable


def make_tables(request: Request) -> list[LearnableTable]:
    """Make the tables of learnable rows, with the homes of their rows.

    A row's home is that of its node. If relations are divided and every sub-metatree has tables of
    its own, the servers that store the sub-metatree share the rows instead.
    """
    config, graph, reads = request.config, request.graph, request.reads
    offsets = {name: graph.book.offsets[stored] for name, stored in reads.types.items()}
    unrolling = reads.unrolling
    if unrolling is not None and graph.partitions and config.learnable.tables == "per_server_table":
        for root, below in unrolling.below.items():
            holders = [root in partition.roots for partition in graph.partitions]
            for name in {relation.src for relation in below}:
                if unrolling.tables[name] != reads.types[name]:
                    count = graph.book.total(reads.types[name])
                    offsets[name] = np.cumsum([0, *holders]) * count // sum(holders)
    names_by_table: dict[str, list[str]] = {}
    for name, table in reads.tables.items():
        names_by_table.setdefault(table, []).append(name)

    def make(table: str, names: list[str]) -> LearnableTable:
        stored = reads.types[names[0]]
        initial, frozen = _initial_rows(config, stored), table in reads.frozen
        settings = tuple(names), initial, frozen, config.learnable.deviation
        return LearnableTable(table, stored, offsets[names[0]], *settings)

    return [make(table, names) for table, names in sorted(names_by_table.items())]


def _initial_rows(config: Config, node_type: str) -> Path | None:
    """Return the file of a type's initial rows; None if there is none."""
    file = Path(config.learnable.initial) / f"{node_type}.npy"
    return file if config.learnable.initial and file.exists() else None


def check_learnable(request: Request) -> None:
    """Refuse types, initial rows or frozen rows that do not fit the graph and the model."""
    config, settings, learned = request.config, request.config.learnable, request.reads.learned
    reached = sorted({inputs.node_type for inputs in request.reads.inputs.values()})
    for key, names, allowed, which in (
        ("types", settings.types, reached, "that the model reads"),
        ("frozen", settings.frozen, learned, "with learnable rows"),
    ):
        if unknown := sorted({*names} - {*allowed}):
            raise RequestError(
                f"learnable.{key}: expected node types {which} ({', '.join(allowed)}), given "
                f"{', '.join(unknown)}"
            )
    if learned and config.hop.replicas == "independent":
        raise RequestError(
            f"hop.replicas: node type {', '.join(map(repr, learned))} has learnable rows, which "
            'all models share; expected "synchronous"'
        )
    if not config.model.input_weights:
        _check_read_as_they_are(request)
    if not settings.initial:
        return
    files = {node_type: _initial_rows(config, node_type) for node_type in learned}
    if not any(files.values()):
        raise RequestError(
            f"learnable.initial: {settings.initial} has none of "
            f"{', '.join(f'{node_type}.npy' for node_type in learned)}"
        )
    width = settings.dim or config.model.hidden
    for node_type, file in files.items():
        if file is not None:
            _check_rows(file, (request.schema.node_types[node_type].count, width))


def _check_read_as_they_are(request: Request) -> None:
    """Refuse rows that need an input projection if the model has none."""
    config, featured = request.config, request.reads.featured
    if featured:
        raise RequestError(
            "model.input_weights: without them every node needs a learnable row; expected true, "
            f"given false with node type {', '.join(featured)} with features"
        )
    if config.learnable.dim not in (0, config.model.hidden):
        raise RequestError(
            f"learnable.dim: without input weights rows are model.hidden wide; expected "
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
