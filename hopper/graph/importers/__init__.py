"""Import graphs from other formats, with a module for each; libraries are loaded when needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hopper.errors import RequestError
from hopper.files.addresses import refuse_address
from hopper.graph.importers.tables import GraphTables
from hopper.graph.importers.transforms import RandomSplit
from hopper.graph.importers.write_graph import ImportOptions, write_tables
from hopper.graph.publish import refuse_occupied
from hopper.timing.phases import Progress

_QUERIED: Final = ("csv", "parquet", "sql")
KINDS: Final = ("npy", "ogb", "dgl", "pyg", *_QUERIED, "graphml", "graphbolt", "distdgl")

__all__ = ["KINDS", "GraphTables", "ImportOptions", "RandomSplit", "import_graph", "write_tables"]


def import_graph(
    kind: str,
    source: str,
    out: str | Path,
    options: ImportOptions | None = None,
    *,
    name: str | None = None,
    root: str | Path = "dataset",
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Import a graph into a new graph directory.

    Parameters
    ----------
    kind: ``npy`` (a folder), ``ogb`` (a dataset's name), ``dgl`` (a file of ``dgl.save_graphs``),
        ``pyg`` (a file of ``torch.save``), ``csv`` or ``parquet`` (a folder), ``sql`` (a file of
        queries), ``graphml`` (a file), ``graphbolt`` (a folder) or ``distdgl`` (the JSON file of
        ``dgl.distributed.partition_graph``, or the metadata.json of a chunked graph).
    name: name of the graph; None = the source's name for it.
    root: folder in which the ogb library keeps its downloads.
    progress: shows the progress of an import of tables.
    tell: is called with a line on the memory and disk space that tables will take.

    Returns
    -------
    Notes on the import for the user, one line each.

    Raises
    ------
    GraphError: the source is unusable. The text names file and field.
    RequestError: the kind is unknown, its library is missing, an option does not fit, or ``out`` is
        occupied.
    """
    import_options = options or ImportOptions()
    if import_options.memory_limit is not None and kind not in _QUERIED:
        raise RequestError(
            f"--memory-limit: expected an import of csv, parquet or sql, given {kind}"
        )
    if kind not in KINDS:
        raise RequestError(f"import: expected one of {', '.join(KINDS)}, given {kind!r}")
    refuse_address(source)
    refuse_occupied(Path(out))
    shows: dict[str, Any] = {"progress": progress, "tell": tell}
    if kind == "sql":
        from hopper.graph.importers.sql import import_sql, read_queries_file

        queries = read_queries_file(Path(source))
        queries = replace(queries, name=name or queries.name)
        return import_sql(queries, Path(out), import_options, file=Path(source), **shows)
    if kind in _QUERIED:
        from hopper.graph.importers.table_folder import import_folder

        return import_folder(Path(source), kind, Path(out), import_options, name=name, **shows)  # type: ignore[arg-type]
    read = getattr(import_module(f"{__name__}.{kind}"), f"read_{kind}")
    tables = read(source, Path(root)) if kind == "ogb" else read(Path(source))
    tables.name = name or tables.name
    return write_tables(tables, out, import_options)
