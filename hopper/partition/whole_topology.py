"""Map a relation's whole topology in global ids, while a partitioned directory is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopper.graph import layout
from hopper.graph.array_file import open_array
from hopper.graph.schema import Relation


def open_indptr(folder: Path, relation: Relation, nodes: int) -> NDArray[np.int64]:
    """Map the bounds of a relation's neighbour lists: [nodes + 1] int64."""
    file = layout.topology_file(folder, relation, "indptr")
    return open_array(file, f"indptr of {relation}", np.int64, (nodes + 1,))


def open_indices(folder: Path, relation: Relation, edges: int) -> NDArray[np.int64]:
    """Map the neighbours in a relation's neighbour lists: [edges] int64."""
    file = layout.topology_file(folder, relation, "indices")
    return open_array(file, f"indices of {relation}", np.int64, (edges,))
