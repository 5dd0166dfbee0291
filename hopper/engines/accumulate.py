"""Training a group: forward and backward over merged micrographs, gradients accumulated.

The loss is the *sum* of root losses divided by the size of the global batch (design.md,
invariant 2), so groups, passes and ranks can be added in any split without changing the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.device_copies import to_device
from hopper.engines.model_reads import ModelReads
from hopper.errors import RequestError
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
from hopper.micrograph.pairs import Pairs
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective, run_model
from hopper.models.run import run_root_rows
from hopper.ops import StoredRows, products_in, to_floats
from hopper.run_log import RunLog
from hopper.tasks import LinkBatches, pair_scores

_HALF_SCALE: Final = 1024.0
"""times the loss that float16 starts from, whose smallest numbers are too large for many gradients;
a power of two, so that nothing is rounded when it is taken out again"""


@dataclass
class Pass:
    """A subgraph with its rows, to be trained on by one model or by several in turn.

    features: by node type that has any, [nodes, dim]; a type without nodes may be missing. edges:
    by relation, those of its edges, as of :meth:`Subgraph.typed_blocks`. labels: of the roots, as
    the objective takes them.
    """

    subgraph: Subgraph
    features: dict[str, torch.Tensor]
    edges: dict[Relation, torch.Tensor]
    labels: torch.Tensor
    _blocks: list[TypedBlocks] | None = field(default=None, repr=False)

    def blocks(self, device: torch.device, dropout: int | None = None) -> list[TypedBlocks]:
        """The subgraph's blocks, made once; with another key of dropout masks, if one is given.

        What kernels prepare for a block depends on its edges alone, so it serves every model.
        """
        if self._blocks is None:
            self._blocks = self.subgraph.typed_blocks(device, self.edges)
        if dropout is None:
            return self._blocks
        return [each.with_dropout_key(dropout) for each in self._blocks]


def overflowed(where: str) -> RequestError:
    """What ends a run whose gradients left the range of float16."""
    return RequestError(
        f"train.autocast: gradients left what float16 can hold ({where}); expected bfloat16 or "
        "off, or a smaller train.learning_rate"
    )


def join_rows(
    reads: ModelReads,
    name: str,
    ids: NDArray[np.int64],
    features: torch.Tensor | None,
    learned: LeafRows,
    *,
    repeats: bool = False,
) -> torch.Tensor:
    """[n, width]: input rows of nodes of a type, features first.

    Parameters
    ----------
    name: of the type, as the model has it.
    features: [n, dim]; None where the type has none.
    learned: that has the learnable rows of these nodes, where the type has any.
    repeats: whether a node may be there at several times, whose rows are one and the same.
    """
    if not reads.inputs[name].learned:
        assert features is not None
        return features
    if repeats:
        nodes, places = np.unique(ids, return_inverse=True)
        rows = learned.of(name, nodes)
        rows = rows.index_select(0, to_device(places, rows.device))
    else:
        rows = learned.of(name, ids)
    return rows if features is None else torch.cat((features, rows), 1)


class InputRowsByType(Mapping[str, torch.Tensor]):
    """By name of a type, [n, width]: input rows of nodes, features first, then what is learned.

    Learnable rows may be under way: they are read when they are asked for, and types without any
    come first.

    Parameters
    ----------
    nodes: by name of a type, as the model has it, ids.
    features: by name of a type that has any, [n, dim].
    learned: that has the learnable rows of these nodes.
    repeats: as of :func:`join_rows`.
    """

    def __init__(
        self,
        reads: ModelReads,
        nodes: Mapping[str, NDArray[np.int64]],
        features: Mapping[str, torch.Tensor],
        learned: LeafRows,
        *,
        repeats: bool = False,
    ) -> None:
        self._reads, self._nodes, self._repeats = reads, nodes, repeats
        self._features, self._learned = features, learned
        self._rows: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
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


class GroupTrainer:
    """Samples, gathers and trains groups of roots of one node type.

    Parameters
    ----------
    reads: what the model reads; :attr:`learned` has the learnable rows of an iteration.
    micro_batch: roots of one forward pass at most; larger groups take several passes.
    products_in: what matrix products are computed in, if not in ``dtype``.
    links: what turns links into roots, where they are predicted; groups are of links then.

    Attributes
    ----------
    on_device: features that are held on the device, where they are looked for first.
    scale: times the gradient that backward passes make; see :meth:`unscale`.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        reads: ModelReads,
        log: RunLog,
        objective: Objective,
        micro_batch: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        products_in: torch.dtype | None = None,
        links: LinkBatches | None = None,
    ) -> None:
        self.links = links
        self.reads = reads
        self.learned = LeafRows({}, {})
        self.sampler = sampler
        self._log = log
        self.objective = objective
        self._micro_batch = micro_batch
        self.dtype = dtype
        self._device = device
        self._products_in = products_in
        self.scale = _HALF_SCALE if products_in == torch.float16 else 1.0
        self.on_device: DeviceRows | None = None

    def products(self) -> AbstractContextManager[None]:
        """Within it a forward pass computes matrix products as the configuration says."""
        return products_in(self._products_in, self._device)

    @property
    def reads_in_place(self) -> bool:
        """Whether features of this server are read when they are computed with, not before."""
        return self._device.type == "cpu" and self.on_device is None

    def sample(self, roots: NDArray[np.int64], epoch: int, iteration: int) -> list[Subgraph]:
        """The subgraphs of a group, one per pass; none for an empty group."""
        with self._log.stage("sample", roots=int(roots.size)):
            return [self.sample_pass(part, epoch, iteration) for part in self._passes(roots)]

    def sample_pass(self, roots: NDArray[np.int64], epoch: int, iteration: int) -> Subgraph:
        """The subgraph of some roots, all in one pass."""
        if self.links is None:
            return self.sampler.sample(roots, epoch, iteration).with_edges(self.reads.edges)
        pairs = self.links.pairs(roots, epoch, iteration)
        found = self.sampler.sample_versions(pairs.versions, epoch, iteration)
        return replace(found.with_edges(self.reads.edges), pairs=pairs)

    def fetched_once(self, rows: PartitionedRows, subgraphs: Sequence[Subgraph]) -> InputRows:
        """Rows for several passes: remote ones are fetched now, each once for all of them.

        Where rows that are held on the device make room for others, what will be missing is not
        known yet: each is fetched when it is.
        """
        held = self.on_device
        if held is not None and held.evicts:
            return rows
        with self._log.stage("gather", operation="pregather"):
            wanted: dict[str, list[NDArray[np.int64]]] = {}
            for each, own in self.reads.inputs.items():
                if own.features:
                    stored = own.node_type
                    groups = [subgraph.nodes[each] for subgraph in subgraphs]
                    if held is not None:
                        groups = [held.absent(stored, ids) for ids in groups]
                    wanted.setdefault(stored, []).extend(groups)
            for subgraph in subgraphs:
                for table, groups in subgraph.edge_tables().items():
                    if held is not None:
                        groups = [held.absent(table, ids) for ids in groups]
                    wanted.setdefault(table, []).extend(groups)
            return PregatheredRows(rows, wanted)

    def accumulate(
        self,
        packed: PackedModel,
        subgraphs: Sequence[Subgraph],
        rows: InputRows,
        batch_size: int,
    ) -> None:
        """Add a group's gradient and loss, divided by ``batch_size``, to the packed model."""
        for subgraph in subgraphs:
            self.train(packed, self.read(subgraph, rows), batch_size)

    def read(self, subgraph: Subgraph, rows: InputRows) -> Pass:
        """Gather what one pass over a subgraph needs, but rows that are learned."""
        count = sum(int(nodes.size) for nodes in subgraph.nodes.values())
        with self._log.stage("gather", rows=count):
            features = self._features(subgraph, rows)
            edges = self.edge_features_of(rows, subgraph)
            labels = self.answers(rows, subgraph.roots, subgraph.pairs)
        return Pass(subgraph, features, edges, labels)

    def train(
        self, packed: PackedModel, work: Pass, batch_size: int, dropout: int | None = None
    ) -> None:
        """Add a pass's gradient and loss, divided by ``batch_size``, to the packed model.

        Parameters
        ----------
        dropout: uint64 key of the dropout masks; None = that of the subgraph's draws.
        """
        with self._log.stage("compute", roots=work.subgraph.num_roots):
            blocks = work.blocks(self._device, dropout)
            nodes = {name: ids for name, ids in work.subgraph.nodes.items() if ids.size}
            inputs = self.with_learned(nodes, work.features)
            with self.products():
                logits = self._logits(packed.module, blocks, inputs, work.subgraph.pairs)
                loss = self.objective.loss_sum(logits, work.labels) / batch_size
            self.backward(packed, loss)

    def judged(
        self, model: torch.nn.Module, rows: torch.Tensor, subgraph: Subgraph
    ) -> torch.Tensor:
        """[n, ...]: what the loss is made of, from the rows of a pass's roots in a graph of one
        node type: these are logits, or scores of pairs are made of them."""
        return rows if subgraph.pairs is None else pair_scores(model, rows, subgraph.pairs)

    def _logits(
        self,
        model: torch.nn.Module,
        blocks: Sequence[TypedBlocks],
        inputs: Mapping[str, torch.Tensor],
        pairs: Pairs | None,
    ) -> torch.Tensor:
        """[n, ...]: what the loss is made of: a model's logits, or the scores of pairs."""
        if pairs is None:
            return run_model(model, blocks, inputs)
        return pair_scores(model, run_root_rows(model, blocks, inputs, list(pairs.versions)), pairs)

    def backward(
        self, packed: PackedModel, loss: torch.Tensor, tie: torch.Tensor | None = None
    ) -> None:
        """Add a loss, and :attr:`scale` times its gradient, to the packed model.

        Parameters
        ----------
        tie: zero; what the way back has to meet besides.
        """
        start = loss if self.scale == 1.0 else loss * self.scale
        (start if tie is None else start + tie).backward()
        packed.loss += loss.detach()

    def unscale(self, packed: PackedModel) -> bool:
        """Let gradients that were added up be those of the loss; whether, of float16, they are
        numbers still."""
        if self.scale == 1.0:
            return True
        packed.gradients.div_(self.scale)
        return bool(packed.gradients.isfinite().all())

    def _passes(self, roots: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        for start in range(0, roots.size, self._micro_batch):
            yield roots[start : start + self._micro_batch]

    def answers(
        self, rows: InputRows, roots: NDArray[np.int64], pairs: Pairs | None
    ) -> torch.Tensor:
        """[n, ...]: what the loss compares roots with, or, where edges are predicted, their
        pairs."""
        if pairs is None:
            return self.labels_of(rows, roots)
        return self.objective.shaped(to_device(pairs.labels, self._device))

    def labels_of(self, rows: InputRows, ids: NDArray[np.int64]) -> torch.Tensor:
        """[n, ...]: labels of nodes of the target type, as the loss reads them."""
        return self.objective.shaped(self._rows_of(rows, "labels", self.reads.target, ids))

    def _rows_of(
        self, rows: InputRows, kind: RowKind, node_type: str, ids: NDArray[np.int64]
    ) -> torch.Tensor:
        """[n, ...]: rows of nodes of a type as they are stored, on the device that trains."""
        if kind == "features" and self.reads_in_place:
            return rows.stored(node_type, ids)
        if kind == "features" and self.on_device is not None:
            return self.on_device.read(rows, node_type, ids)
        return to_device(rows.gather(kind, node_type, ids), self._device)

    def own_features(
        self,
        rows: PartitionedRows,
        name: str,
        ids: NDArray[np.int64],
        mine: NDArray[np.bool_],
    ) -> torch.Tensor:
        """[n, dim]: features of distinct nodes of a type, zeros where they are not ``mine`` [n]."""
        found = rows.stored_local(self.reads.inputs[name].node_type, ids, mine)
        if not self.reads_in_place:
            return found.gathered().to(self._device).to(self.dtype)
        return found.to(self.dtype)

    def features_of(
        self, rows: InputRows, nodes: Mapping[str, NDArray[np.int64]]
    ) -> dict[str, torch.Tensor]:
        """By name of a type that has features, [n, dim]: those of distinct nodes."""
        return {
            name: to_floats(self._rows_of(rows, "features", own.node_type, ids), self.dtype)
            for name, ids in nodes.items()
            if (own := self.reads.inputs[name]).features
        }

    def edge_features_of(self, rows: InputRows, subgraph: Subgraph) -> dict[Relation, torch.Tensor]:
        """By relation, [n, dim]: features of the edges that a subgraph reads those of."""
        return {
            relation: self.edge_rows(rows, own.table, own.ids)
            for relation, own in subgraph.edges.items()
        }

    def edge_rows(self, rows: InputRows, table: str, ids: NDArray[np.int64]) -> torch.Tensor:
        """[n, dim]: features of distinct edges of a relation, given as ``src/rel/dst``."""
        return to_floats(self._rows_of(rows, "features", table, ids), self.dtype)

    def with_learned(
        self, nodes: Mapping[str, NDArray[np.int64]], features: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """By name of a type, [n, width]: input rows of nodes; see :class:`InputRowsByType`."""
        repeats = self.sampler.reads_times
        return InputRowsByType(self.reads, nodes, features, self.learned, repeats=repeats)

    def _features(self, subgraph: Subgraph, rows: InputRows) -> dict[str, torch.Tensor]:
        """By name of a type, the features of a subgraph's nodes; each row is read once, whatever
        the number of names that its type has."""
        by_stored: dict[str, list[str]] = {}
        for name, nodes in subgraph.nodes.items():
            if nodes.size and self.reads.inputs[name].features:
                by_stored.setdefault(self.reads.inputs[name].node_type, []).append(name)
        features: dict[str, torch.Tensor] = {}
        for names in by_stored.values():
            own = {name: subgraph.nodes[name] for name in names}
            if len(names) == 1:
                features |= self.features_of(rows, own)
                continue
            ids = distinct(list(own.values()))
            read = self.features_of(rows, {names[0]: ids})[names[0]]
            for name, nodes in own.items():
                places = np.searchsorted(ids, nodes)
                chosen = to_device(places, read.device)
                features[name] = (
                    read.pick(chosen)
                    if isinstance(read, StoredRows)
                    else read.index_select(0, chosen)
                )
        return features
