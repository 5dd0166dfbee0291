"""Import graphs from other formats, with a module for each; libraries are loaded when needed."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from hopper.errors import RequestError
from hopper.graph.importers.check_tables import check_tables
from hopper.graph.importers.convert import ImportOptions, write_tables
from hopper.graph.importers.random_split import RandomSplit
from hopper.graph.importers.tables import GraphTables
from hopper.graph.importers.workspace import Watcher
from hopper.graph.publish import refuse_occupied

KINDS: Final = ("npy", "ogb", "dgl", "pyg", "csv", "parquet", "graphml")
_READ_APART: Final = ("ogb", "dgl", "pyg", "parquet", "graphml")
"""Kinds that are read in another process, because their libraries parse binary formats in C++,
unpickle, or expand what they read."""
_TABLES: Final = ("csv", "parquet")

__all__ = [
    "KINDS",
    "GraphTables",
    "ImportOptions",
    "RandomSplit",
    "Watcher",
    "import_graph",
    "write_tables",
]


def import_graph(
    kind: str,
    source: str,
    out: str | Path,
    options: ImportOptions | None = None,
    *,
    name: str | None = None,
    root: str | Path = "dataset",
    watcher: Watcher | None = None,
) -> list[str]:
    """Import a graph into a new graph directory.

    Parameters
    ----------
    kind: ``npy`` (a folder), ``ogb`` (a dataset's name), ``dgl`` (a file of ``dgl.save_graphs``),
        ``pyg`` (a file of ``torch.save``), ``csv`` or ``parquet`` (a folder) or ``graphml`` (a
        file).
    name: name of the graph; None = the source's name for it.
    root: folder in which the ogb library keeps its downloads.
    watcher: is told the memory and disk space that tables will take, and their progress.

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
    if import_options.memory_limit is not None and kind not in _TABLES:
        raise RequestError(f"--memory-limit: expected an import of csv or parquet, given {kind}")
    refuse_occupied(Path(out))
    if kind in _READ_APART:
        # Imported here: it is run as a program too.
        from hopper.graph.importers.apart import import_apart

        request = {"kind": kind, "source": source, "name": name, "root": str(root)}
        return import_apart(request, Path(out), import_options, watcher or Watcher())
    return import_here(kind, source, out, import_options, name=name, root=root, watcher=watcher)


def import_here(
    kind: str,
    source: str,
    out: str | Path,
    options: ImportOptions,
    *,
    name: str | None,
    root: str | Path,
    watcher: Watcher | None = None,
) -> list[str]:
    """Do what :func:`import_graph` does, always in this process."""
    if kind in _TABLES:
        from hopper.graph.importers.table_folder import import_folder

        suffix: Literal["csv", "parquet"] = "csv" if kind == "csv" else "parquet"
        return import_folder(
            Path(source), suffix, Path(out), options, name=name, watcher=watcher or Watcher()
        )
    tables = _read(kind, source, Path(root))
    if name is not None:
        tables.name = name
    check_tables(tables)
    return write_tables(tables, out, options)


def _read(kind: str, source: str, root: Path) -> GraphTables:
    if kind == "npy":
        from hopper.graph.importers.npy import read_npy

        return read_npy(Path(source))
    if kind == "ogb":
        from hopper.graph.importers.ogb import read_ogb

        return read_ogb(source, root)
    if kind == "dgl":
        from hopper.graph.importers.dgl import read_dgl

        return read_dgl(Path(source))
    if kind == "pyg":
        from hopper.graph.importers.pyg import read_pyg

        return read_pyg(Path(source))
    if kind == "graphml":
        from hopper.graph.importers.networkx import read_graphml

        return read_graphml(Path(source))
    raise RequestError(f"import: expected one of {', '.join(KINDS)}, given {kind!r}")
