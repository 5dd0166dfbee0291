"""Micro-batches: merged micrographs with their rows, on which models run forward and backward.

The loss is the *sum* of root losses divided by the size of the global batch. Groups, micro-batches
and ranks can therefore be added in any split without changing the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from hopper.device.copies import to_device
from hopper.engines.request import ModelReads, Request
from hopper.engines.training_parts import make_objective
from hopper.features import DeviceRows, InputRows, PartitionedRows, PregatheredRows, distinct
from hopper.graph.block import TypedBlocks
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.hetero.learnable import LeafRows
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Pairs, Subgraph
from hopper.migrate.flat_model import FlatModel
from hopper.models import run_model
from hopper.models.relational import HGNN
from hopper.ops import StoredRows, products_in, to_floats
from hopper.tasks import LinkBatches, pair_scores
from hopper.timing.run_log import RunLog


@dataclass
class MicroBatch:
    """A subgraph with its rows, on which one model trains, or several models in turn."""

    subgraph: Subgraph
    features: dict[str, Tensor]
    """by node type, [nodes, dim]; types without features are missing, those without nodes may be"""
    edges: dict[Relation, Tensor]
    labels: Tensor
    device: torch.device

    @cached_property
    def blocks(self) -> list[TypedBlocks]:
        """The subgraph's blocks: what kernels prepare for a block serves every model."""
        return self.subgraph.typed_blocks(self.device, self.edges)


@dataclass(eq=False)
class InputRowsByType(Mapping[str, Tensor]):
    """Input rows [n, width] by name of a type: features, then learnable rows.

    Learnable rows may still be on their way. They are read on first access, and iteration visits
    the types without learnable rows first. If ``nodes`` may name a node several times, once for
    each of its versions, it ``repeats``.
    """

    reads: ModelReads
    nodes: Mapping[str, Ids]
    features: Mapping[str, Tensor]
    learned: LeafRows
    repeats: bool = False
    _rows: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._rows:
            self._rows[name] = self._read(name, self.nodes[name])
        return self._rows[name]

    def _read(self, name: str, ids: Ids) -> Tensor:
        if not self.reads.inputs[name].learned:
            return self.features[name]
        if self.repeats:
            nodes, places = np.unique(ids, return_inverse=True)
            rows = self.learned.of(name, nodes)
            rows = rows.index_select(0, to_device(places, rows.device))
        else:
            rows = self.learned.of(name, ids)
        return torch.cat((self.features[name], rows), 1) if name in self.features else rows

    def __iter__(self) -> Iterator[str]:
        inputs = self.reads.inputs
        return iter(sorted(self.nodes, key=lambda name: (bool(inputs[name].learned), name)))

    def __len__(self) -> int:
        return len(self.nodes)


class MicroBatchRunner:
    """Samples groups of roots, reads their rows and trains on them, in micro-batches of at most
    ``most_roots``.

    Where edges are predicted, groups consist of edges, which ``links`` turns into roots. Edges are
    laid out for the layers of ``model`` when rows are read, ahead of the computation.
    """

    def __init__(
        self,
        request: Request,
        sampler: NeighborSampler,
        links: LinkBatches | None,
        log: RunLog,
        most_roots: int,
        device: torch.device,
        model: nn.Module | None = None,
    ) -> None:
        self.sampler, self.reads, self.links = sampler, request.reads, links
        self.objective = make_objective(request.config, request.schema)
        self.dtype: torch.dtype = getattr(torch, request.config.train.dtype)
        autocast = request.config.train.autocast
        self._products_in = None if autocast == "off" else getattr(torch, autocast)
        self.learned = LeafRows({}, {})
        """the learnable rows of an iteration"""
        self.on_device: DeviceRows | None = None
        """features that are cached on the device, and are looked up there first"""
        self._log, self._most_roots, self._device = log, most_roots, device
        self._model = model

    def products(self) -> AbstractContextManager[object]:
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

    def pregather(self, rows: PartitionedRows, reads: Mapping[str, Sequence[Ids]]) -> InputRows:
        """Fetch the remote rows that a plan reads now, each row once for all of its groups.

        If the device cache evicts rows, it is not known yet which rows it will miss. Rows are then
        fetched when they are needed.
        """
        cache, tables, wanted = self.on_device, self.reads.feature_tables, dict[str, list[Ids]]()
        if cache is not None and cache.evicts:
            return rows
        with self._log.stage("gather", operation="pregather"):
            for name, groups in reads.items():
                if table := tables.get(name):
                    absent = groups if cache is None else [cache.absent(table, i) for i in groups]
                    wanted.setdefault(table, []).extend(absent)
            return PregatheredRows(rows, wanted)

    def read(self, subgraph: Subgraph, rows: InputRows) -> MicroBatch:
        """Gather the features and labels of a subgraph."""
        count = sum(int(nodes.size) for nodes in subgraph.nodes.values())
        with self._log.stage("gather", rows=count):
            features = self._features(subgraph, rows)
            edges = self.read_edge_features(rows, subgraph)
            labels = self.read_labels(rows, subgraph.roots, subgraph.pairs)
        micro_batch = MicroBatch(subgraph, features, edges, labels, self._device)
        if isinstance(self._model, HGNN):
            with self._log.stage("sample", operation="lay out"):
                self._model.lay_out(micro_batch.blocks)
        return micro_batch

    def train(
        self,
        packed: FlatModel,
        micro_batch: MicroBatch,
        batch_size: int,
        dropout: int | None = None,
    ) -> None:
        """Add a micro-batch's gradient and loss, divided by ``batch_size``, to the flat model, with
        another uint64 key of dropout masks than that of the draws if one is given."""
        subgraph, model = micro_batch.subgraph, packed.module
        with self._log.stage("compute", roots=subgraph.num_roots):
            blocks = micro_batch.blocks
            if dropout is not None:
                blocks = [hop.with_dropout_key(dropout) for hop in blocks]
            nodes = {name: ids for name, ids in subgraph.nodes.items() if ids.size}
            inputs = self.input_rows(nodes, micro_batch.features)
            with self.products():
                pairs = subgraph.pairs
                types = () if pairs is None else list(pairs.versions)
                logits = run_model(model, blocks, inputs, types)
                if pairs is not None:
                    logits = pair_scores(model, logits, pairs)
                loss = self.objective.loss_sum(logits, micro_batch.labels) / batch_size
            self.backward(packed, loss)

    def backward(self, packed: FlatModel, loss: Tensor, tie: Tensor | None = None) -> None:
        """Add a loss, and the model's loss scale times its gradient, to the flat model, and run the
        backward pass of a zero that is tied to it."""
        start = loss * packed.scale.factor
        (start if tie is None else start + tie).backward()
        packed.add_loss(loss)

    def read_labels(self, rows: InputRows, roots: Ids, pairs: Pairs | None) -> Tensor:
        """Return the labels [n, ...] of roots, or of pairs where edges are predicted."""
        stored = rows.gather("labels", self.reads.target, roots) if pairs is None else pairs.labels
        return self.objective.shape_labels(to_device(stored, self._device))

    def read_features(self, rows: InputRows, nodes: Mapping[str, Ids]) -> dict[str, Tensor]:
        """Return features [n, dim] of distinct nodes, by name of a type that has features."""
        return {
            name: self.read_table(rows, inputs.node_type, ids)
            for name, ids in nodes.items()
            if (inputs := self.reads.inputs[name]).features
        }

    def read_edge_features(self, rows: InputRows, subgraph: Subgraph) -> dict[Relation, Tensor]:
        """Return features [n, dim] of a subgraph's edges, by relation whose features it reads."""
        return {
            relation: self.read_table(rows, edges.table, edges.ids)
            for relation, edges in subgraph.edges.items()
        }

    def read_table(self, rows: InputRows, table: str, ids: Ids) -> Tensor:
        """Return features [n, dim] of distinct nodes of a stored type, or of edges of a relation,
        given as ``src/rel/dst``."""
        if self.reads_in_place:
            stored: Tensor = rows.stored(table, ids)
        elif self.on_device is not None:
            stored = self.on_device.read(rows, table, ids)
        else:
            stored = to_device(rows.gather("features", table, ids), self._device)
        return to_floats(stored, self.dtype)

    def input_rows(
        self, nodes: Mapping[str, Ids], features: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Join features of nodes with the learnable rows of the iteration."""
        repeats = self.sampler.reads_times
        return InputRowsByType(self.reads, nodes, features, self.learned, repeats=repeats)

    def _features(self, subgraph: Subgraph, rows: InputRows) -> dict[str, Tensor]:
        """Return the features of a subgraph's nodes by name of a type, of which several may share a
        table whose rows are then read once."""
        by_table: dict[str, dict[str, Ids]] = {}
        for name, nodes in subgraph.nodes.items():
            if nodes.size and self.reads.inputs[name].features:
                by_table.setdefault(self.reads.inputs[name].node_type, {})[name] = nodes
        features: dict[str, Tensor] = {}
        for table, by_name in by_table.items():
            if len(by_name) == 1:
                features |= self.read_features(rows, by_name)
                continue
            ids = distinct([*by_name.values()])
            read = self.read_table(rows, table, ids)
            for name, nodes in by_name.items():
                places = to_device(np.searchsorted(ids, nodes), read.device)
                if isinstance(read, StoredRows):
                    features[name] = read.pick(places)
                else:
                    features[name] = read.index_select(0, places)
        return features
