"""Sources of feature and label rows: local files, other servers, caches and devices."""

from hopper.features.cached import CachedRows, DeviceRows, Lookups
from hopper.features.local import LocalRows
from hopper.features.opening import download_graph, open_graph, own_server
from hopper.features.partitioned import PartitionedRows, RowCounts
from hopper.features.pregathered import PregatheredRows
from hopper.features.remote import RemoteRows
from hopper.features.row_cache import ReadyRows, RowCache
from hopper.features.source import FeatureSource, InputRows, RowKind, distinct

__all__ = [
    "CachedRows",
    "DeviceRows",
    "FeatureSource",
    "InputRows",
    "LocalRows",
    "Lookups",
    "PartitionedRows",
    "PregatheredRows",
    "ReadyRows",
    "RemoteRows",
    "RowCache",
    "RowCounts",
    "RowKind",
    "distinct",
    "download_graph",
    "open_graph",
    "own_server",
]
