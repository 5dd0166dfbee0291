"""Micro-batches: merged micrographs with their rows, on which models run forward and backward.

The loss is the *sum* of root losses divided by the size of the global batch. Groups, micro-batches
and ranks can therefore be added in any split without changing the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.copies import to_device
from hopper.engines.model_reads import ModelReads
from hopper.features import (
    DeviceRows,
    InputRows,
    PartitionedRows,
    PregatheredRows,
    RowKind,
)
from hopper.graph.block import TypedBlocks
from hopper.graph.schema import Relation
from hopper.hetero.learnable import LeafRows, distinct
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Pairs, Subgraph
from hopper.migrate.flat_model import FlatModel
from hopper.models import Objective, run_model
from hopper.models.run import run_root_rows
from hopper.ops import StoredRows, products_in, to_floats
from hopper.tasks import LinkBatches, pair_scores
from hopper.timing.run_log import RunLog

Ids = NDArray[np.int64]


@dataclass
class MicroBatch:
    """A subgraph with its rows, on which one model trains, or several models in turn.

    Attributes
    ----------
    features: by node type, [nodes, dim]. Types without features are missing, and types without
        nodes may be.
    edges: by relation, the features of its edges, as :meth:`Subgraph.typed_blocks` takes them.
    labels: the labels of the roots, as the objective takes them.
    """

    subgraph: Subgraph
    features: dict[str, Tensor]
    edges: dict[Relation, Tensor]
    labels: Tensor
    _blocks: list[TypedBlocks] | None = field(default=None, repr=False)

    def blocks(self, device: torch.device, dropout: int | None = None) -> list[TypedBlocks]:
        """Return the subgraph's blocks. They are made once, as what kernels prepare for a block
        serves every model.

        Parameters
        ----------
        dropout: uint64 key of the dropout masks; None = the key of the subgraph's draws.
        """
        if self._blocks is None:
            self._blocks = self.subgraph.typed_blocks(device, self.edges)
        if dropout is None:
            return self._blocks
        return [blocks.with_dropout_key(dropout) for blocks in self._blocks]


def join_rows(
    reads: ModelReads,
    name: str,
    ids: Ids,
    features: Tensor | None,
    learned: LeafRows,
    *,
    repeats: bool = False,
) -> Tensor:
    """Return the input rows [n, width] of nodes of a type: features, then learnable rows.

    Parameters
    ----------
    name: the type's name in the model.
    features: [n, dim]; None if the type has no features.
    learned: the learnable rows of these nodes, if the type has any.
    repeats: whether ``ids`` may name a node several times, once for each of its versions.
    """
    if not reads.inputs[name].learned:
        assert features is not None
        return features
    if repeats:
        nodes, indices = np.unique(ids, return_inverse=True)
        rows = learned.of(name, nodes)
        rows = rows.index_select(0, to_device(indices, rows.device))
    else:
        rows = learned.of(name, ids)
    return rows if features is None else torch.cat((features, rows), 1)


class InputRowsByType(Mapping[str, Tensor]):
    """Input rows [n, width] by name of a type: features, then learnable rows.

    Learnable rows may still be on their way. They are read on first access, and iteration visits
    the types without learnable rows first. Parameters are those of :func:`join_rows`, by type.
    """

    def __init__(
        self,
        reads: ModelReads,
        nodes: Mapping[str, Ids],
        features: Mapping[str, Tensor],
        learned: LeafRows,
        *,
        repeats: bool = False,
    ) -> None:
        self._reads, self._nodes, self._repeats = reads, nodes, repeats
        self._features, self._learned = features, learned
        self._rows: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._rows:
            ids, features = self._nodes[name], self._features.get(name)
            self._rows[name] = join_rows(
                *(self._reads, name, ids, features, self._learned), repeats=self._repeats
            )
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        inputs = self._reads.inputs
        return iter(sorted(self._nodes, key=lambda name: (bool(inputs[name].learned), name)))

    def __len__(self) -> int:
        return len(self._nodes)


class MicroBatchRunner:
    """Samples groups of roots, reads their rows and trains on them.

    Parameters
    ----------
    reads: what the model reads. :attr:`learned` holds the learnable rows of an iteration.
    most_roots: the most roots of a micro-batch; larger groups take several.
    products_in: the dtype of matrix products, if it is not ``dtype``.
    links: turns links into roots, where edges are predicted. Groups then consist of links.

    Attributes
    ----------
    on_device: features that are cached on the device, and are looked up there first.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        reads: ModelReads,
        log: RunLog,
        objective: Objective,
        most_roots: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        products_in: torch.dtype | None = None,
        links: LinkBatches | None = None,
    ) -> None:
        self.sampler, self.reads, self.links = sampler, reads, links
        self.objective, self.dtype = objective, dtype
        self.learned = LeafRows({}, {})
        self.on_device: DeviceRows | None = None
        self._log, self._most_roots, self._device = log, most_roots, device
        self._products_in = products_in

    def products(self) -> AbstractContextManager[None]:
        """Return a context in which matrix products have the dtype of the configuration."""
        return products_in(self._products_in, self._device)

    @property
    def reads_in_place(self) -> bool:
        """Whether this server's features are read only when they are multiplied."""
        return self._device.type == "cpu" and self.on_device is None

    def sample(self, roots: Ids, epoch: int, iteration: int) -> list[Subgraph]:
        """Return the subgraphs of a group, one per micro-batch; none for an empty group."""
        with self._log.stage("sample", roots=int(roots.size)):
            starts = range(0, roots.size, self._most_roots)
            return [
                self.sample_once(roots[start : start + self._most_roots], epoch, iteration)
                for start in starts
            ]

    def sample_once(self, roots: Ids, epoch: int, iteration: int) -> Subgraph:
        """Return one subgraph of all given roots, whatever their number."""
        if self.links is None:
            return self.sampler.sample(roots, epoch, iteration).with_edges(self.reads.edges)
        pairs = self.links.pairs(roots, epoch, iteration)
        subgraph = self.sampler.sample_versions(pairs.versions, epoch, iteration)
        return replace(subgraph.with_edges(self.reads.edges), pairs=pairs)

    def pregather(self, rows: PartitionedRows, subgraphs: Sequence[Subgraph]) -> InputRows:
        """Fetch the remote rows of several micro-batches now, each row once for all of them.

        If the device cache evicts rows, it is not known yet which rows it will miss. Rows are then
        fetched when they are needed.
        """
        cache = self.on_device
        if cache is not None and cache.evicts:
            return rows
        with self._log.stage("gather", operation="pregather"):
            wanted: dict[str, list[Ids]] = {}
            for name, inputs in self.reads.inputs.items():
                if inputs.features:
                    groups = [subgraph.nodes[name] for subgraph in subgraphs]
                    wanted.setdefault(inputs.node_type, []).extend(groups)
            for subgraph in subgraphs:
                for table, groups in subgraph.edge_tables().items():
                    wanted.setdefault(table, []).extend(groups)
            if cache is not None:
                wanted = {
                    table: [cache.absent(table, ids) for ids in groups]
                    for table, groups in wanted.items()
                }
            return PregatheredRows(rows, wanted)

    def accumulate(
        self,
        packed: FlatModel,
        subgraphs: Sequence[Subgraph],
        rows: InputRows,
        batch_size: int,
    ) -> None:
        """Add a group's gradient and loss, divided by ``batch_size``, to the flat model."""
        for subgraph in subgraphs:
            self.train(packed, self.read(subgraph, rows), batch_size)

    def read(self, subgraph: Subgraph, rows: InputRows) -> MicroBatch:
        """Gather the features and labels of a subgraph."""
        count = sum(int(nodes.size) for nodes in subgraph.nodes.values())
        with self._log.stage("gather", rows=count):
            features = self._features(subgraph, rows)
            edges = self.read_edge_features(rows, subgraph)
            labels = self.read_labels(rows, subgraph.roots, subgraph.pairs)
        return MicroBatch(subgraph, features, edges, labels)

    def train(
        self,
        packed: FlatModel,
        micro_batch: MicroBatch,
        batch_size: int,
        dropout: int | None = None,
    ) -> None:
        """Add a micro-batch's gradient and loss, divided by ``batch_size``, to the flat model.

        Parameters
        ----------
        dropout: uint64 key of the dropout masks; None = the key of the subgraph's draws.
        """
        subgraph, model = micro_batch.subgraph, packed.module
        with self._log.stage("compute", roots=subgraph.num_roots):
            blocks = micro_batch.blocks(self._device, dropout)
            nodes = {name: ids for name, ids in subgraph.nodes.items() if ids.size}
            inputs = self.input_rows(nodes, micro_batch.features)
            with self.products():
                if subgraph.pairs is None:
                    logits = run_model(model, blocks, inputs)
                else:
                    types = list(subgraph.pairs.versions)
                    rows = run_root_rows(model, blocks, inputs, types)
                    logits = pair_scores(model, rows, subgraph.pairs)
                loss = self.objective.loss_sum(logits, micro_batch.labels) / batch_size
            self.backward(packed, loss)

    def backward(self, packed: FlatModel, loss: Tensor, tie: Tensor | None = None) -> None:
        """Add a loss, and the model's loss scale times its gradient, to the flat model.

        Parameters
        ----------
        tie: a zero whose backward pass must also run.
        """
        factor = packed.scale.factor
        start = loss if factor == 1.0 else loss * factor
        (start if tie is None else start + tie).backward()
        packed.add_loss(loss)

    def read_labels(self, rows: InputRows, roots: Ids, pairs: Pairs | None) -> Tensor:
        """Return the labels [n, ...] of roots, or of pairs where edges are predicted."""
        if pairs is not None:
            return self.objective.shape_labels(to_device(pairs.labels, self._device))
        return self.objective.shape_labels(
            self._read_rows(rows, "labels", self.reads.target, roots)
        )

    def read_features(self, rows: InputRows, nodes: Mapping[str, Ids]) -> dict[str, Tensor]:
        """Return features [n, dim] of distinct nodes, by name of a type that has features."""
        return {
            name: to_floats(self._read_rows(rows, "features", inputs.node_type, ids), self.dtype)
            for name, ids in nodes.items()
            if (inputs := self.reads.inputs[name]).features
        }

    def read_edge_features(self, rows: InputRows, subgraph: Subgraph) -> dict[Relation, Tensor]:
        """Return features [n, dim] of a subgraph's edges, by relation whose features it reads."""
        return {
            relation: self.read_edge_rows(rows, edges.table, edges.ids)
            for relation, edges in subgraph.edges.items()
        }

    def read_edge_rows(self, rows: InputRows, table: str, ids: Ids) -> Tensor:
        """Return features [n, dim] of distinct edges of a relation, given as ``src/rel/dst``."""
        return to_floats(self._read_rows(rows, "features", table, ids), self.dtype)

    def input_rows(
        self, nodes: Mapping[str, Ids], features: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Join features of nodes with the learnable rows of the iteration.

        Returns
        -------
        Input rows [n, width] by name of a type, which are read on first access.
        """
        repeats = self.sampler.reads_times
        return InputRowsByType(self.reads, nodes, features, self.learned, repeats=repeats)

    def _read_rows(self, rows: InputRows, kind: RowKind, table: str, ids: Ids) -> Tensor:
        """Return rows [n, ...] of a table in their stored form, on the device."""
        if kind == "features" and self.reads_in_place:
            return rows.stored(table, ids)
        if kind == "features" and self.on_device is not None:
            return self.on_device.read(rows, table, ids)
        return to_device(rows.gather(kind, table, ids), self._device)

    def _features(self, subgraph: Subgraph, rows: InputRows) -> dict[str, Tensor]:
        """Return the features of a subgraph's nodes, by name of a type.

        A type may have several names. Each of its rows is read once.
        """
        by_stored: dict[str, list[str]] = {}
        for name, nodes in subgraph.nodes.items():
            if nodes.size and self.reads.inputs[name].features:
                by_stored.setdefault(self.reads.inputs[name].node_type, []).append(name)
        features: dict[str, Tensor] = {}
        for names in by_stored.values():
            nodes_by_name = {name: subgraph.nodes[name] for name in names}
            if len(names) == 1:
                features |= self.read_features(rows, nodes_by_name)
                continue
            ids = distinct(list(nodes_by_name.values()))
            read = self.read_features(rows, {names[0]: ids})[names[0]]
            for name, nodes in nodes_by_name.items():
                indices = to_device(np.searchsorted(ids, nodes), read.device)
                features[name] = (
                    read.pick(indices)
                    if isinstance(read, StoredRows)
                    else read.index_select(0, indices)
                )
        return features
