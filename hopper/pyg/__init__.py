"""Hopper under PyG: its loaders with PyG's arguments and results, over feature servers.

``torch_geometric`` must be installed; none of its compiled extras are needed. A training script
keeps its model, its loss and its optimiser, and changes an import (docs/howto/pyg.md).
"""

from importlib.util import find_spec

from hopper.errors import cannot_import

if find_spec("torch_geometric") is None:
    raise ImportError(cannot_import("hopper.pyg", "torch_geometric"))

from hopper.pyg.embeddings import write_embeddings
from hopper.pyg.link_loader import LinkNeighborLoader
from hopper.pyg.node_loader import NeighborLoader
from hopper.pyg.remote_backend import FeatureStore, GraphStore, Sampler

__all__ = [
    "FeatureStore",
    "GraphStore",
    "LinkNeighborLoader",
    "NeighborLoader",
    "Sampler",
    "write_embeddings",
]
