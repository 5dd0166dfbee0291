"""Message-passing operations over blocks, with several backends and without atomics."""

from hopper.ops.attention import edge_add, edge_softmax, edge_softmax_with_self, segment_max
from hopper.ops.dropout import drop_edges, drop_rows, drop_self
from hopper.ops.edges import copy_max, destination_rows, edge_sum, source_rows
from hopper.ops.grouped import grouped_product
from hopper.ops.message_passing import copy_mean, copy_sum, edge_dot, weighted_sum
from hopper.ops.precision import in_full, is_finite, products_in
from hopper.ops.row_reader import RowPart, to_floats
from hopper.ops.selection import backend, use_backend
from hopper.ops.stored_rows import StoredRows

__all__ = [
    "RowPart",
    "StoredRows",
    "backend",
    "copy_max",
    "copy_mean",
    "copy_sum",
    "destination_rows",
    "drop_edges",
    "drop_rows",
    "drop_self",
    "edge_add",
    "edge_dot",
    "edge_softmax",
    "edge_softmax_with_self",
    "edge_sum",
    "grouped_product",
    "in_full",
    "is_finite",
    "products_in",
    "segment_max",
    "source_rows",
    "to_floats",
    "use_backend",
    "weighted_sum",
]
