"""Features that come from somewhere else than a server's files: a class of one's own.

It is named where a process is started, never in a file of data. Rows are asked for by original id,
the number that the graph's owner knows a node by.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import SourceError

RowDtype = Literal["float32", "float16"]
_TRIED: Final = 3


class RowSource(Protocol):
    """Feature rows of one node type. Its class is called with the keywords ``node_type``, ``count``
    (nodes of the type in the whole graph) and ``server`` (whose nodes will be asked for, by index),
    and its options.

    It is made in every rank and in every feature server. A server's nodes are asked for on that
    server's machine alone, so each machine may have its own rows.
    """

    @property
    def dim(self) -> int:
        """Numbers in a row."""
        ...

    @property
    def dtype(self) -> RowDtype:
        """Of a row."""
        ...

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """[n, dim] in the dtype: the rows of [n] original ids, in their order.

        Ids may repeat; n may be 0. An id always has the same row. The array is the caller's from
        then on. One thread at a time calls this, and not always the same one.
        """
        ...


@dataclass(frozen=True)
class SourceRequest:
    """A source as it is asked for: the class, and keywords for its constructor.

    Attributes
    ----------
    name: "package.module:Class".
    """

    name: str
    options: Mapping[str, Any]


NO_SOURCES: Final[Mapping[str, SourceRequest]] = {}


class CheckedSource:
    """A source whose rows are compared with what it says of them.

    Parameters
    ----------
    name: of the class, for errors.
    node_type: whose rows.
    """

    def __init__(self, name: str, node_type: str, source: RowSource) -> None:
        self._name = f"features of {node_type}: {name}"
        self._source = source
        self._lock = threading.Lock()
        dim, dtype = getattr(source, "dim", None), getattr(source, "dtype", None)
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
            raise SourceError(f"{self._name}: dim: expected an integer >= 1, got {dim!r:.100}")
        known = get_args(RowDtype)
        if dtype not in known:
            raise SourceError(
                f"{self._name}: dtype: expected {' or '.join(known)}, got {dtype!r:.100}"
            )
        self.dim = dim
        self.dtype_name = dtype
        self.dtype = np.dtype(dtype)

    def read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """[n, dim]: the rows of [n] original ids.

        Raises
        ------
        SourceError: the source raised an error, or gave something else.
        """
        try:
            with self._lock:
                rows = self._source.read(ids)
        # Whatever somebody else's source raises, what to look at is its name.
        except Exception as error:
            raise SourceError(
                f"{self._name}: rows cannot be read ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(rows, np.ndarray) or (rows.shape, rows.dtype) != (
            (ids.size, self.dim),
            self.dtype,
        ):
            what = f"{list(rows.shape)} of {rows.dtype}" if isinstance(rows, np.ndarray) else rows
            raise SourceError(
                f"{self._name}: expected rows [{ids.size}, {self.dim}] of {self.dtype}; got "
                f"{what!s:.200}"
            )
        # A view of what the source keeps would be written to.
        return rows if rows.flags.owndata and rows.flags.c_contiguous else rows.copy()

    def check(self, ids: NDArray[np.int64]) -> None:
        """Read a few rows, before anything depends on them: none, and the first ones twice.

        Parameters
        ----------
        ids: original ids that will be asked for.

        Raises
        ------
        SourceError: as :meth:`read`; the same id has not the same row.
        """
        first = ids[:_TRIED]
        self.read(ids[:0])
        rows, back = self.read(first), self.read(first[::-1].copy())
        if not np.array_equal(rows, back[::-1], equal_nan=True):
            raise SourceError(
                f"{self._name}: expected the same row of an id every time, whatever is read with it"
            )


def open_source(
    request: SourceRequest, node_type: str, server: int, ids: NDArray[np.int64]
) -> CheckedSource:
    """Import a source's class, and make it for a server.

    Parameters
    ----------
    ids: [count] int64, original ids of all nodes of the type.

    Raises
    ------
    SourceError: it cannot be imported or made, or its rows are not what it says.
    """
    module, _, name = request.name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        source = found(node_type=node_type, count=ids.size, server=server, **request.options)
    # Whatever somebody else's module raises, what to look at is its name.
    except Exception as error:
        raise SourceError(
            f"features of {node_type}: {request.name} cannot be made "
            f"({type(error).__name__}: {error})"
        ) from error
    return CheckedSource(request.name, node_type, source)


def parse_requests(features: Sequence[str], options: Sequence[str]) -> dict[str, SourceRequest]:
    """Sources by node type, from the command line.

    Parameters
    ----------
    features: each "TYPE=package.module:Class". options: each "TYPE={JSON}".

    Raises
    ------
    SourceError: one is not of this form.
    """
    names = dict(_split("--features", each) for each in features)
    tables: dict[str, Any] = {}
    for node_type, text in (_split("--features-options", each) for each in options):
        try:
            tables[node_type] = json.loads(text)
        except ValueError:
            tables[node_type] = None
        if not isinstance(tables[node_type], dict) or node_type not in names:
            raise SourceError(
                f"--features-options: expected TYPE={{JSON}} of a type of --features; got "
                f"{node_type}={text:.100}"
            )
    for node_type, name in names.items():
        if not all(name.partition(":")):
            raise SourceError(
                f"--features: expected TYPE=package.module:Class; got {node_type}={name:.100}"
            )
    return {each: SourceRequest(name, tables.get(each, {})) for each, name in names.items()}


def _split(option: str, text: str) -> tuple[str, str]:
    node_type, equals, value = text.partition("=")
    if not equals:
        raise SourceError(f"{option}: expected TYPE=...; got {text!r:.100}")
    return node_type, value


@dataclass(frozen=True)
class ServedNodes:
    """The nodes of a type that a server serves: global ids from ``first``, and all original ids."""

    first: int
    stop: int
    original_ids: NDArray[np.int64]


def read_nodes(partitioned: Path, node_type: str, server: int) -> ServedNodes:
    """Find a server's nodes in a partitioned directory (docs/partitions.md).

    Raises
    ------
    SourceError: the directory does not tell of the type.
    """
    try:
        offsets = json.loads((partitioned / "partition.json").read_bytes())["offsets"][node_type]
        file = partitioned / "maps" / node_type / "original_ids.npy"
        # An empty file part cannot be mapped.
        ids = np.load(file, mmap_mode="r" if offsets[-1] else None, allow_pickle=False)
        nodes = ServedNodes(int(offsets[server]), int(offsets[server + 1]), ids)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise SourceError(
            f"features of {node_type}: {partitioned} does not tell of such nodes "
            f"({type(error).__name__}: {error})"
        ) from error
    if ids.shape != (offsets[-1],) or ids.dtype != np.int64:
        raise SourceError(
            f"{file}: expected [{offsets[-1]}] int64; got {list(ids.shape)} of {ids.dtype}"
        )
    return nodes
