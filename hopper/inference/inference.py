"""What every way of computing the rows of nodes shares.

All neighbours are read, without sampling and without dropout, by all ranks together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.engines import Request
from hopper.engines.accumulate import join_rows
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.block import TypedBlocks
from hopper.graph.schema import Relation
from hopper.hetero.learnable import LeafRows, LearnableRows
from hopper.inference.row_space import RowSpace
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.models import GNN
from hopper.models.relational import HGNN
from hopper.tasks import rows_width

CHUNK_BYTES: Final = 256 << 20
"""of the rows that one pass reads, where nothing else is asked for"""
ROOTS_PER_PASS: Final = 256
"""where whole k-hop neighbourhoods are needed"""
ROWS_PER_PASS: Final = 200_000

Ids = NDArray[np.int64]
Output = Literal["logits", "embeddings"]


@dataclass(frozen=True)
class Scene:
    """What rows are computed with.

    Attributes
    ----------
    dtype: of the model's parameters.
    classes: how many numbers the run's model makes of a node.
    chunk_bytes: of the rows that one pass reads.
    at: where draws are in time, for which time rows are computed; None = for that of each root.
    """

    request: Request
    cluster: Cluster
    rows: PartitionedRows
    dtype: torch.dtype
    learnable: LearnableRows
    classes: int
    chunk_bytes: int = CHUNK_BYTES
    at: int | None = None


@dataclass(frozen=True)
class Wanted:
    """Nodes of a type, and what is wanted of them.

    Attributes
    ----------
    name: of the nodes; what is planned for them is kept under it.
    ids: [n] int64 global ids, ascending, the same on every rank; of ends of edges, versions
        (:meth:`Inference.versions_at`).
    output: embeddings are what the classifier reads of a node: the last layer's rows where a linear
        head follows it, and otherwise the rows of the layer before it.
    node_type: theirs; empty = the target type.
    """

    name: str
    ids: Ids
    output: Output = "logits"
    node_type: str = ""


def check_output(model: torch.nn.Module, output: Output, *, by_relation: bool) -> None:
    """Refuse embeddings of what has none.

    Parameters
    ----------
    by_relation: whether the graph is divided by relation.

    Raises
    ------
    RequestError: says what was expected.
    """
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
    """Computes rows of nodes, on all ranks together.

    Parameters
    ----------
    sampler: which takes all neighbours that the model reads.
    """

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        self.scene = scene
        self._sampler = sampler
        self.graph = scene.request.graph
        self._reads = scene.request.reads
        self._cluster = scene.cluster
        self.placement = self.graph.placement(scene.cluster.ranks_per_server)
        self._rows = scene.rows
        self._dtype = scene.dtype
        self._learned = LeafRows({}, {})
        """of the pass under way"""
        self.target = self.graph.schema.target_type()

    def split(self, name: str) -> Wanted:
        """The logits of a split's nodes."""
        return Wanted(name, np.sort(self.graph.global_ids(self.target)[self.graph.split(name)]))

    @property
    def is_in_time(self) -> bool:
        """Whether rows of a node depend on the time of the root."""
        return self._sampler.reads_times

    def versions_at(self, node_type: str, nodes: Ids, times: Ids | None) -> Ids:
        """[n] int64: what rows are computed of, of ends of edges at some times."""
        return self._sampler.versions_at(node_type, nodes, times)

    @abstractmethod
    def takes_any_number(self, model: torch.nn.Module) -> bool:
        """Whether some nodes at a time take no more work than all at once."""

    @abstractmethod
    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[Ids, Tensor]:
        """This rank's share: [n] int64 global ids and [n, width]; every rank has to call it.

        Parameters
        ----------
        model: in evaluation mode.
        space: where rows of layers are kept; None = in memory.

        Raises
        ------
        RequestError: as of :func:`check_output`.
        ClusterError: a rank or server was lost, or a deadline passed.
        StorageError: as of :meth:`RowSpace.fill`.
        """

    @property
    def _are_versions(self) -> bool:
        """Whether versions are asked for."""
        return bool(self.graph.schema.target_relations) and self.scene.at is None

    def _sample(self, sampler: NeighborSampler, roots: Mapping[str, Ids]) -> Subgraph:
        """The subgraph of nodes by type, at the time that rows are computed for, or of versions."""
        at = self.scene.at
        if self._are_versions:
            return sampler.sample_versions(roots, 0, 0)
        if at is None:
            return sampler.sample(roots, 0, 0)
        found = {
            name: sampler.versions_at(name, ids, np.full(ids.size, at))
            for name, ids in roots.items()
        }
        return sampler.sample_versions(found, 0, 0)

    def _width_of(self, model: torch.nn.Module) -> int:
        """How many numbers a model makes of a node; trials may make different ones."""
        return rows_width(model) or self.scene.classes

    def _rows_per_chunk(self, width: int) -> int:
        return max(1, self.scene.chunk_bytes // (width * self._dtype.itemsize))

    def _read_learned(self, wanted: Mapping[str, Sequence[Ids]]) -> None:
        """Read the learnable rows of a pass, if there are any: by name of a type, of nodes in
        groups; collective."""
        self._learned = self.scene.learnable.read(wanted, "evaluation")

    def _blocks(self, subgraph: Subgraph) -> list[TypedBlocks]:
        """A subgraph's blocks, with features of edges where the model reads them."""
        found = subgraph.with_edges(self._reads.edges)
        return found.typed_blocks(self._cluster.device, self._edge_features(found))

    def _edge_features(self, subgraph: Subgraph) -> dict[Relation, Tensor]:
        """By relation, [n, dim]: features of the edges that a subgraph reads those of."""
        device, found = self._cluster.device, {}
        for relation, own in subgraph.edges.items():
            rows = self._rows.stored(own.table, own.ids)
            found[relation] = rows if device.type == "cpu" else rows.gathered().to(device)
            found[relation] = found[relation].to(self._dtype)
        return found

    def _inputs(self, node_type: str, ids: Ids) -> Tensor:
        """[n, width]: features of distinct nodes and, behind them, their learnable rows."""
        own, features = self._reads.inputs[node_type], None
        device = self._cluster.device
        if own.features and device.type == "cpu":
            features = self._rows.whole(own.node_type, ids).to(self._dtype)
        elif own.features:
            features = self._rows.whole(own.node_type, ids).gathered().to(device).to(self._dtype)
        return join_rows(self._reads, node_type, ids, features, self._learned)
