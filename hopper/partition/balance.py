"""What METIS balances, besides cutting few edges.

Balance is a multi-constraint problem (DistDGLv2, section 4.1.3): for every class of nodes (the
training nodes, and the other nodes by type) both the number of nodes and the sum of their degrees.
pymetis hands METIS a single weight a node, so there one weighted sum is balanced.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import GraphSchema
from hopper.partition.symmetrise import type_starts

# METIS reserves room for 16 constraints, and every class takes two.
MOST_CLASSES: Final = 8
_RESOLUTION: Final = 16
_MOST_RELATIVE_WEIGHT: Final = 100


def balance_classes(schema: GraphSchema, roots: NDArray[np.int64]) -> NDArray[np.int64]:
    """[nodes of all types] int64: the class whose share METIS balances, by stacked id.

    Parameters
    ----------
    roots: [nodes of the target type] int64, training roots per node.

    Notes
    -----
    Class 0 holds the training nodes, the others the remaining nodes of a type. With more types
    than METIS has constraints for, the smallest types share the last class.
    """
    nodes = sum(described.count for described in schema.node_types.values())
    starts = type_starts(schema)
    by_size = sorted(schema.node_types, key=lambda t: -schema.node_types[t].count)
    classes = np.zeros(nodes, np.int64)
    for rank, node_type in enumerate(by_size):
        start = starts[node_type]
        stop = start + schema.node_types[node_type].count
        classes[start:stop] = min(rank + 1, MOST_CLASSES - 1)
    target = starts[schema.target_type()]
    classes[target : target + roots.size][roots > 0] = 0
    return classes


def combined_weight(degrees: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """[nodes] int64: nodes, degrees and training nodes (class 0) in one weight, a third each.

    Few training nodes weigh less than their third, lest single nodes become too heavy to balance.
    """
    nodes, training = classes.size, int((classes == 0).sum())
    of_degree = degrees * (nodes / max(1, int(degrees.sum())))
    of_training = np.where(classes == 0, min(nodes / max(1, training), _MOST_RELATIVE_WEIGHT), 0)
    weight: NDArray[np.int64] = np.rint(_RESOLUTION * (1 + of_degree + of_training)).astype(
        np.int64
    )
    return weight
