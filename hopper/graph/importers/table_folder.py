"""Import a folder of tables within a limit of memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from hopper.errors import RequestError
from hopper.graph.importers.check_tables import check_tables
from hopper.graph.importers.convert import ImportOptions, write_tables
from hopper.graph.importers.database import Database, Watcher, open_database
from hopper.graph.importers.encode_like import LikeGraph
from hopper.graph.importers.problems import Problems
from hopper.graph.importers.queries import Suffix, find_queries
from hopper.graph.importers.read_arrays import describe_classes
from hopper.graph.importers.read_query import NodeIds, read_query
from hopper.graph.importers.tables import GraphTables, choose_target
from hopper.graph.schema import Relation
from hopper.phases import Phases

_KINDS: Final = {"csv": "CSV", "parquet": "Parquet"}
_DISK: Final = 5
"""Bytes on disk for a byte of the tables: they themselves, what is sorted, and the graph."""


def import_folder(
    folder: Path,
    suffix: Suffix,
    out: Path,
    options: ImportOptions,
    *,
    name: str | None,
    watcher: Watcher,
) -> list[str]:
    """Read a folder of tables and write a graph directory, as ``import_graph`` does."""
    like = LikeGraph.open(options.encode_like, options.unknown_category)
    with open_database(out, options.memory_limit, Phases(watcher.progress)) as database:
        watcher.tell(_estimate(folder, suffix, out, database))
        tables = read_folder(
            folder, suffix, database, target_follows=bool(options.targets), like=like
        )
        tables.name = name or tables.name
        check_tables(tables)
        return write_tables(tables, out, options, database)


def read_folder(
    folder: Path,
    suffix: Suffix,
    database: Database,
    *,
    target_follows: bool = False,
    like: LikeGraph | None = None,
) -> GraphTables:
    """Read a folder of tables; what is wrong with them becomes problems of the result."""
    problems = Problems()
    source = f"{_KINDS[suffix]} tables {folder.name}"
    tables = GraphTables(folder.name, source, problems=problems)
    ids = dict[str, NodeIds]()
    for owner, query in find_queries(folder, suffix, database, problems).items():
        like_table = None if like is None else like.table(owner)
        read = problems.attempt(
            query.file, "table", read_query, query, database, problems, ids, like_table
        )
        if read is None:
            continue
        table, node_ids = read
        if isinstance(owner, Relation):
            tables.edges[owner] = table
        else:
            tables.nodes[owner] = table
            ids |= {owner: node_ids} if node_ids is not None else {}
        tables.notes += like_table.notes if like_table is not None else []
        for task, names in table.classes.items():
            of_task = f"{task}: " if task else ""
            tables.notes.append(f"labels of {owner}: {of_task}{describe_classes(names)}")
    for relation in list(tables.edges):
        if not {relation.src, relation.dst} <= set(tables.nodes):
            del tables.edges[relation]
    if like is not None and all(table.splits is None for table in tables.all.values()):
        tables.targets = like.schema.target_relations or (like.schema.target,)
    else:
        # Where a table or a column is left out, the target may seem to be unclear.
        for_target = Problems() if problems else problems
        for_target.attempt(
            folder, "target", choose_target, tables, str(folder), follows=target_follows
        )
    return tables


def _estimate(folder: Path, suffix: Suffix, out: Path, database: Database) -> str:
    """Say how much memory and disk the import may take."""
    needed = _DISK * sum(file.stat().st_size for file in folder.glob(f"*.{suffix}"))
    free = shutil.disk_usage(database.folder).free
    if needed > free:
        raise RequestError(
            f"{out.absolute().parent}: too little disk space: about {needed / 2**30:.2f} GiB "
            f"needed for the graph and what is spilled, {free / 2**30:.2f} GiB available"
        )
    return (
        f"memory: at most {database.limit / 2**30:.2f} GiB (--memory-limit); disk: about "
        f"{needed / 2**30:.2f} GiB while it works, {free / 2**30:.2f} GiB available"
    )
