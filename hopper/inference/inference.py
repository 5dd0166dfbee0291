"""The interface and common parts of all ways to compute rows of nodes.

All neighbours are read, without sampling and dropout. All ranks work together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.engines import Request
from hopper.engines.micro_batch import InputRowsByType
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.block import TypedBlocks
from hopper.graph.topology import Ids
from hopper.hetero.learnable import LeafRows, LearnableRows
from hopper.inference.end_rows import EndRows
from hopper.inference.row_space import RowSpace
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.models import GNN
from hopper.models.relational import HGNN
from hopper.ops import StoredRows
from hopper.tasks import rows_width

CHUNK_BYTES: Final = 256 << 20
"""default size of the rows that one pass reads"""

Output = Literal["logits", "embeddings"]


@dataclass(frozen=True)
class Scene:
    """The graph, cluster and settings that rows are computed with."""

    request: Request
    cluster: Cluster
    rows: PartitionedRows
    """the source of features"""
    dtype: torch.dtype
    """of the model's parameters"""
    learnable: LearnableRows
    classes: int
    """width of the model's output for a node"""
    chunk_bytes: int = CHUNK_BYTES
    """size of the rows that one pass reads"""
    at: int | None = None
    """for draws in time, the time for which rows are computed; None = the time of each root"""


@dataclass(frozen=True)
class Wanted:
    """The nodes whose rows are wanted, and which rows."""

    name: str
    """of this set of nodes, under which plans for it are kept"""
    ids: Ids
    """[n], ascending and the same on every rank: global ids, or versions of the ends of edges
    (:meth:`NeighborSampler.versions_at`)"""
    output: Output = "logits"
    """Embeddings are what the classifier reads: the rows of the last layer if a linear head follows
    it, otherwise those of the layer before."""
    node_type: str = ""
    """of the nodes; empty = the target type"""


def check_output(model: torch.nn.Module, output: Output, *, by_relation: bool) -> None:
    """Refuse embeddings (:class:`RequestError`) if the model has none, or if the graph is divided
    ``by_relation`` and they would not come together."""
    if output == "logits" or (isinstance(model, HGNN) and model.has_head):
        return
    if not isinstance(model, GNN | HGNN):
        raise RequestError(
            f"embeddings: {type(model).__name__} has only a forward(), and returns logits; "
            "expected a hopper.models.gnn.GNN, or to predict logits"
        )
    if by_relation:
        raise RequestError(
            "embeddings: of a graph that is divided by relation rows of the last layer alone come "
            "together; expected a graph divided by nodes, or a model with a head"
        )
    if len(model.layers) == 1:
        raise RequestError(
            "embeddings: the model's only layer makes logits; expected a model with more layers or "
            "with a head, or to predict logits"
        )


class Inference(ABC):
    """Computes rows of nodes on all ranks together. The sampler takes all neighbours that the model
    reads."""

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        self.scene, self.sampler = scene, sampler
        self.graph, self._reads = scene.request.graph, scene.request.reads
        self._cluster, self._rows, self._dtype = scene.cluster, scene.rows, scene.dtype
        self.placement = self.graph.placement(scene.cluster.ranks_per_server)
        self._learned = LeafRows({}, {})
        """learnable rows of the current pass"""
        self.target = self.graph.schema.target_type()

    def split(self, name: str) -> Wanted:
        """Return the request for the logits of a split's nodes."""
        return Wanted(name, np.sort(self.graph.global_ids(self.target)[self.graph.split(name)]))

    def shares_work(self, model: torch.nn.Module) -> bool:
        """Return whether nodes that are wanted together take less work than in parts."""
        return False

    @abstractmethod
    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[Ids, Tensor]:
        """Compute this rank's share of the wanted rows, [n, width], and return it after the rows'
        global ids or versions, [n] int64. Every rank must call this.

        The model is in evaluation mode. Rows of layers are kept in ``space``; None = in memory.
        Errors are those of :func:`check_output` and :meth:`RowSpace.fill`, and a
        :class:`ClusterError` where a rank or server was lost or a deadline passed.
        """

    def ends(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> EndRows:
        """Compute the rows of the ends of edges, as :meth:`rows` does."""
        ids, rows = self.rows(model, wanted, space)
        where = f"telling who has rows of {wanted.name}"
        return EndRows.of(self._cluster, wanted.ids, ids, rows, where)

    @property
    def _are_versions(self) -> bool:
        """Return whether wanted ids are versions."""
        return bool(self.graph.schema.target_relations) and self.scene.at is None

    def _sample(self, name: str, ids: Ids) -> Subgraph:
        """Sample the subgraph of nodes or versions of a type, at the scene's time if it has one."""
        sampler, at = self.sampler, self.scene.at
        if not self._are_versions:
            if at is None:
                return sampler.sample({name: ids}, 0, 0)
            ids = sampler.versions_at(name, ids, np.full(ids.size, at))
        return sampler.sample_versions({name: ids}, 0, 0)

    def _width_of(self, model: torch.nn.Module) -> int:
        """Return the width of a model's output, which may differ between trials."""
        return rows_width(model) or self.scene.classes

    def _rows_per_chunk(self, width: int) -> int:
        return max(1, self.scene.chunk_bytes // (width * self._dtype.itemsize))

    def _read_learned(self, wanted: Mapping[str, Sequence[Ids]]) -> None:
        """Read the learnable rows of a pass by type, [n] int64 ids each; collective."""
        self._learned = self.scene.learnable.read(wanted, "evaluation")

    def _blocks(self, subgraph: Subgraph) -> list[TypedBlocks]:
        """Return a subgraph's blocks, with features of edges if the model reads any."""
        subgraph = subgraph.with_edges(self._reads.edges)
        features = {
            relation: self._convert(self._rows.stored(edges.table, edges.ids))
            for relation, edges in subgraph.edges.items()
        }
        return subgraph.typed_blocks(self._cluster.device, features)

    def _inputs(self, node_type: str, ids: Ids) -> Tensor:
        """Return [n, width]: the features of distinct nodes, followed by their learnable rows."""
        kind, features = self._reads.inputs[node_type], dict[str, Tensor]()
        if kind.features:
            features[node_type] = self._convert(self._rows.whole(kind.node_type, ids))
        return InputRowsByType(self._reads, {node_type: ids}, features, self._learned)[node_type]

    def _convert(self, stored: StoredRows) -> Tensor:
        """Return stored rows in the model's dtype; on CPUs they stay in their files."""
        device = self._cluster.device
        rows = stored if device.type == "cpu" else stored.to_tensor().to(device)
        return rows.to(self._dtype)
