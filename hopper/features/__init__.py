"""Rows of features and labels, wherever they live."""

from hopper.features.local import LocalRows
from hopper.features.partitioned import PartitionedRows, RowCounts
from hopper.features.pregathered import PregatheredRows
from hopper.features.remote import RemoteRows
from hopper.features.source import FeatureSource, RowKind

__all__ = [
    "FeatureSource",
    "LocalRows",
    "PartitionedRows",
    "PregatheredRows",
    "RemoteRows",
    "RowCounts",
    "RowKind",
]
