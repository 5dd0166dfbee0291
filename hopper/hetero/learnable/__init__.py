"""Learnable input rows of nodes (Heta, sections 2.2 and 6).

Each row has one home, which by default is the rank that owns its node. Other ranks fetch the rows
that an iteration reads, and send their gradients back. The owner updates each of these rows once an
iteration, so all exact engines train the same rows.
"""

from hopper.hetero.learnable.fetched import PREFIX, FetchedRows
from hopper.hetero.learnable.leaf import Leaf, LeafRows
from hopper.hetero.learnable.messages import Routes
from hopper.hetero.learnable.rows import LearnableRows, distinct_by_table
from hopper.hetero.learnable.table import (
    IDS,
    LearnableTable,
    Learning,
    TableShare,
    first_rows,
)

__all__ = [
    "IDS",
    "PREFIX",
    "FetchedRows",
    "Leaf",
    "LeafRows",
    "LearnableRows",
    "LearnableTable",
    "Learning",
    "Routes",
    "TableShare",
    "distinct_by_table",
    "first_rows",
]
