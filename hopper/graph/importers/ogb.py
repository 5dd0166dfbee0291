"""Import graphs of the Open Graph Benchmark, of nodes or links to predict, through its library.

Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020. The
library saves dictionaries of NumPy arrays with ``torch.save``, in a protocol that torch's
restricted reader does not know. The reader here builds arrays and their containers, calls nothing
that a file names, and refuses a file that names anything else.
"""

from __future__ import annotations

# A closed reader: it calls nothing that a file names.
import pickle  # noqa: TID251
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError, cannot_import
from hopper.graph.importers.arrays import EDGES, NODE, TableReader, Triple, as_array
from hopper.graph.importers.source_files import explain_errors
from hopper.graph.importers.tables import GraphTables
from hopper.graph.layout import safe_name

_LINKS: Final = "ogbl-"
"""How names of datasets begin whose links are predicted."""
_ENDS: Final = (("source_node", "target_node"), ("head", "tail"))
_COLUMNS_OF_LINKS: Final = {"weights": "weight", "times": "year"}
_SPLIT_NAMES: Final = {"valid": "val"}
_KEYS: Final = {"features": "features", "labels": "labels"}
_RECONSTRUCT: Final = np.empty(0).__reduce__()[0]
# numpy 1 and numpy 2 pickle arrays under different names.
_KNOWN: Final[dict[tuple[str, str], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): OrderedDict,
}


def read_ogb(name: str, root: Path) -> GraphTables:
    """Load a dataset, such as ``ogbn-arxiv`` or ``ogbl-collab``; the library downloads it into
    ``root`` if need be."""
    are_links = name.startswith(_LINKS)
    try:
        if are_links:
            from ogb.linkproppred import LinkPropPredDataset as Dataset
        else:
            from ogb.nodeproppred import NodePropPredDataset as Dataset
    except ImportError as error:
        raise RequestError(cannot_import("import ogb", "ogb", error)) from error
    try:
        with load_arrays_only():
            dataset = Dataset(name=name, root=str(root))
            content = dataset[0]
            splits = dataset.get_edge_split() if are_links else dataset.get_idx_split()
    # The library raises whatever its downloader and unpacker raise.
    except Exception as error:
        raise RequestError(
            f"import ogb: the ogb library could not load {name!r} into {root}: {error}"
        ) from error
    if are_links:
        return tables_from_ogb_links(name, content, splits)
    graph, labels = content
    return tables_from_ogb(name, graph, labels, splits)


@contextmanager
def load_arrays_only() -> Iterator[None]:
    """Let ``torch.load`` build nothing but tensors, arrays and their containers meanwhile."""
    import torch

    load = torch.load

    def load_arrays(file: str | Path, *_arguments: Any, **_keywords: Any) -> Any:
        # Another pickle holds NumPy's arrays.
        with (
            suppress(pickle.UnpicklingError),
            explain_errors(f"{file}: cannot be read", OSError, RuntimeError, EOFError),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return load(file, weights_only=True)
        with (
            explain_errors(f"{file}: expected arrays and nothing else"),
            zipfile.ZipFile(file) as archive,
        ):
            [name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            with archive.open(name) as stream:
                return _ArrayUnpickler(stream).load()

    # A type checker refuses the assignment of another function, but not ``setattr``.
    setattr(torch, "load", load_arrays)  # noqa: B010
    try:
        yield
    finally:
        setattr(torch, "load", load)  # noqa: B010


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")
        return _KNOWN[module, name]


def tables_from_ogb(
    name: str, graph: Mapping[str, Any], labels: Any, splits: Mapping[str, Any]
) -> GraphTables:
    """Convert the library's (graph, labels) pair and split dictionary.

    A heterogeneous graph has labels and ids of splits by node type. Labels are [n, c]; one float
    column of integers, with NaN for unlabelled nodes, holds classes.
    """
    where = f"ogb dataset {name}"
    if "edge_index_dict" not in graph:
        labels, splits = {NODE: labels}, {key: {NODE: ids} for key, ids in splits.items()}
    targets = {node_type for ids in splits.values() for node_type in ids} or set(labels)
    if len(targets) != 1:
        raise GraphError(f"{where}: expected splits of one node type, given {sorted(targets)}")
    for node_type, values in labels.items():
        if np.asarray(values).dtype.kind == "f":
            filled = np.where(np.isnan(values), -1, values)
            is_column = filled.ndim == 1 or filled.shape[1] == 1
            if is_column and np.array_equal(filled, np.floor(filled)):
                labels = {**labels, node_type: filled.astype(np.int64)}
    reader = _read_nodes(name, where, graph, labels)
    edges = graph.get("edge_index_dict") or {EDGES: _entry(graph, "edge_index", where)}
    features = graph.get("edge_feat_dict") or {EDGES: graph.get("edge_feat")}
    for triple, ends in edges.items():
        reader.add_edges(triple, ends, {"features": features.get(triple)}, _KEYS)
    reader.tables.targets = (safe_name(next(iter(targets))),)
    reader.tables.divide_splits({
        _SPLIT_NAMES.get(key, key): np.asarray(next(iter(ids.values())))
        for key, ids in splits.items()
    })  # fmt: skip
    return reader.tables


def _read_nodes(
    name: str, where: str, graph: Mapping[str, Any], labels: Mapping[str, Any]
) -> TableReader:
    """Begin the tables of a graph with its nodes, of one or of several types."""
    reader = TableReader(name, f"Open Graph Benchmark, {name}, through the ogb library", where)
    counts = graph.get("num_nodes_dict") or {NODE: _entry(graph, "num_nodes", where)}
    features = graph.get("node_feat_dict") or {NODE: graph.get("node_feat")}
    for node_type, count in counts.items():
        data = {"features": features.get(node_type), "labels": labels.get(node_type)}
        reader.add_nodes(node_type, data, _KEYS, int(count))
    return reader


def tables_from_ogb_links(
    name: str, graph: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]]
) -> GraphTables:
    """Convert the library's training graph and the links of its splits, which are all edges.

    Links that have numbers of relations are those of so many relations.
    """
    where = f"ogb dataset {name}"
    reader = _read_nodes(name, where, graph, {})
    ends = [_read_ends(links, f"{where}: {split}") for split, links in splits.items()]
    joined, split_of = np.concatenate(ends), np.repeat(list(splits), [len(of) for of in ends])
    columns = {
        key: np.concatenate([as_array(links[key], f"{where}: {key}") for links in splits.values()])
        for key in ("relation", *_COLUMNS_OF_LINKS.values())
        if all(key in links for links in splits.values())
    }
    numbers = columns.pop("relation", np.zeros(len(joined), np.int64))
    triples: dict[int, Triple] = {0: EDGES}
    if isinstance(by_triple := graph.get("edge_reltype"), Mapping):
        triples = {int(of.flat[0]): triple for triple, of in by_triple.items() if of.size}
    elif by_triple is not None:
        triples = {k: (NODE, f"relation_{k}", NODE) for k in np.unique(numbers).tolist()}
    for number, triple in triples.items():
        rows = np.flatnonzero(numbers == number)
        data = {key: values[rows] for key, values in columns.items()}
        table = reader.add_edges(triple, joined[rows].T, data, _COLUMNS_OF_LINKS)
        table.splits = {
            _SPLIT_NAMES.get(split, split): np.flatnonzero(split_of[rows] == split)
            for split in splits
        }
    reader.tables.targets = tuple(reader.tables.edges)
    reader.tables.notes.append(
        "edges are the links of all splits, each in one direction (--add-reverse all adds the "
        "other); the dataset's own negatives are left out"
    )
    return reader.tables


def _read_ends(links: Mapping[str, Any], where: str) -> NDArray[Any]:
    """Return the ends of a split's links, [links, 2]."""
    if "edge" in links:
        return as_array(links["edge"], f"{where}: edge")
    names = _ENDS[0] if _ENDS[0][0] in links else _ENDS[1]
    return np.stack([as_array(_entry(links, key, where), where) for key in names], axis=1)


def _entry(graph: Mapping[str, Any], key: str, where: str) -> Any:
    if graph.get(key) is None:
        raise GraphError(f"{where}: {key}: missing entry")
    return graph[key]
