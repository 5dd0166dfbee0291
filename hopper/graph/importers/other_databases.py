"""Databases beside DuckDB, through their ADBC drivers, which stream results as Arrow batches."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hopper.errors import GraphError, RequestError, cannot_import
from hopper.graph.importers.source_files import require_file

_DRIVERS: Final = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}


def open_database_of(url: str, folder: Path) -> Any:
    """Connect to ``postgresql://...`` or ``sqlite:PATH``, and return a connection of DB-API 2.

    A relative path begins in ``folder``. A GraphError tells that the address has another form, a
    RequestError that the driver is not installed.
    """
    kind, _, rest = url.partition(":")
    if kind not in _DRIVERS:
        raise GraphError(f"expected duckdb:PATH, sqlite:PATH or postgresql://..., given {url!r}")
    package = f"adbc_driver_{_DRIVERS[kind]}"
    try:
        driver = import_module(f"{package}.dbapi")
    except ImportError as error:
        text = cannot_import(f"a {kind} database", package.replace("_", "-"), error)
        raise RequestError(text) from error
    if kind == "sqlite":
        require_file(folder / rest, "database")
        # Without a mode, a file that is not there would be made.
        url = f"file:{quote(str((folder / rest).absolute()))}?mode=ro"
    return driver.connect(url)


def find_casts(schema: Any) -> dict[str, str]:
    """Return the casts in SQL of columns of an Arrow schema that have a type of the database, by
    name: NUMERIC of Postgres comes as texts."""
    numeric = (field for field in schema if getattr(field.type, "type_name", "") == "numeric")
    return {field.name: "DOUBLE" for field in numeric}
