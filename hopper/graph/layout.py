"""The file of each array of a graph directory, and the names that may be part of a path.

The layout is specified in docs/reference/graph-directory.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from hopper.errors import GraphError
from hopper.graph.schema import GraphSchema, Labelled, Relation

SCHEMA_FILE: Final = "graph.json"

TopologyArray = Literal["indptr", "indices", "edge_ids", "in_degrees", "out_degrees"]
StoredArray = TopologyArray | Literal["positions", "cumulative_weights", "times", "by_time"]
"""Arrays of a relation's topology in partitioned directories."""
TOPOLOGY_ARRAYS: Final[tuple[TopologyArray, ...]] = (
    "indptr",
    "indices",
    "edge_ids",
    "in_degrees",
    "out_degrees",
)

_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")


def check_name(name: object, what: str, where: str) -> str:
    """Return ``name`` if it is safe as one component of a path.

    Parameters
    ----------
    what: what is named, for the error ("node type", "split", ...).
    where: the file or argument it comes from, for the error.

    Raises
    ------
    GraphError: it is not a string of letters, digits and ``_.+-``, or it is ``.`` or ``..``.
    """
    if isinstance(name, str) and _SAFE_NAME.fullmatch(name) and name not in (".", ".."):
        return name
    raise GraphError(
        f"{where}: {what}: expected a name of letters, digits and _ . + - only, given {name!r}"
    )


def safe_name(text: str) -> str:
    """Replace every run of characters that names may not have by ``_``; importers use it.

    >>> safe_name("ontology#worksAt")
    'ontology_worksAt'
    """
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "_", text)
    return name if name not in ("", ".", "..") else "_"


def topology_file(root: Path, relation: Relation, array: StoredArray) -> Path:
    """Return the file of one array of a relation's CSC."""
    return root / "topology" / relation.src / relation.rel / relation.dst / f"{array}.npy"


def draw_arrays(schema: GraphSchema, relation: Relation) -> dict[StoredArray, np.dtype[Any]]:
    """Return the arrays, [edges] each, that draws by weight and in time read besides the CSC; by
    name.

    They are in partitioned directories only. Their values here are the dtypes.
    """
    names: list[StoredArray] = []
    if schema.relations[relation].weighted:
        names.append("cumulative_weights")
    if schema.is_timed(relation):
        names += ["times", "by_time"]
    return {name: stored_dtype(name) for name in names}


def stored_dtype(array: StoredArray) -> np.dtype[Any]:
    """Return the dtype of an array of a relation's topology."""
    return np.dtype(np.int32 if array == "cumulative_weights" else np.int64)


def draw_bytes(schema: GraphSchema, relation: Relation) -> int:
    """Return the bytes that :func:`draw_arrays` take for an edge."""
    return sum(dtype.itemsize for dtype in draw_arrays(schema, relation).values())


def features_file(root: Path, node_type: str) -> Path:
    """Return the file of a node type's features."""
    return root / "features" / f"{node_type}.npy"


def edge_features_file(root: Path, relation: Relation) -> Path:
    """Return the file of a relation's edge features."""
    return root / "edge_features" / relation.src / relation.rel / f"{relation.dst}.npy"


def edge_weights_file(root: Path, relation: Relation) -> Path:
    """Return the file of the weights of a relation's edges."""
    return root / "edge_weights" / relation.src / relation.rel / f"{relation.dst}.npy"


def times_file(root: Path, owner: Labelled) -> Path:
    """Return the file of the times of a node type's nodes, or of a relation's edges."""
    if isinstance(owner, Relation):
        return root / "edge_times" / owner.src / owner.rel / f"{owner.dst}.npy"
    return root / "times" / f"{owner}.npy"


def labels_file(root: Path, owner: Labelled) -> Path:
    """Return the file of the labels of a node type, or of a relation's edges."""
    if isinstance(owner, Relation):
        return root / "edge_labels" / owner.src / owner.rel / f"{owner.dst}.npy"
    return root / "labels" / f"{owner}.npy"


def split_file(root: Path, name: str) -> Path:
    """Return the file of a split's ids."""
    return root / "splits" / f"{name}.npy"


def links_file(root: Path, name: str) -> Path:
    """Return the file of a split's links, in a partitioned directory."""
    return root / "links" / f"{name}.npy"


def link_times_file(root: Path, name: str) -> Path:
    """Return the file of the times of a split's links, in a partitioned directory."""
    return root / "links" / f"{name}_times.npy"


def link_labels_file(root: Path, name: str) -> Path:
    """Return the file of the labels of a split's links, in a partitioned directory."""
    return root / "links" / f"{name}_labels.npy"


def label_names_file(root: Path, owner: Labelled, task: str = "") -> Path:
    """Return the optional file of the source's names of classes, one line a class.

    Parameters
    ----------
    task: which of several tasks the classes are of; "" = there is one.
    """
    file = labels_file(root / "names", owner)
    return file.with_suffix("") / f"{task}.txt" if task else file.with_suffix(".txt")


def names_file(root: Path, node_type: str) -> Path:
    """Return the optional file of the source's names of a type's nodes, one line a node."""
    return root / "names" / f"{node_type}.txt"
