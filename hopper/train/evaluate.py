"""Validation and test scores by layer-wise inference over full neighbourhoods.

Each layer is computed once for every node that the scored nodes depend on, by the rank that owns
it. What other ranks read of a node is sent to them, projected where that makes it narrower, so no
row of features crosses a link unless it is narrower than a hidden one. No sampling, no dropout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.array_exchange import exchange_arrays
from hopper.cluster import Cluster
from hopper.engines import Request
from hopper.features import PartitionedRows
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.hetero.learnable import LeafRows, LearnableRows
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.models import GNN, Objective, run_model
from hopper.partials import Wires, choose_wires, make_stack
from hopper.partition.placement import Index

# Input rows of one pass, in bytes: bounds the memory of a chunk.
_CHUNK_BYTES = 256 << 20
# Roots of one pass where whole k-hop neighbourhoods are needed.
ROOTS_PER_PASS = 256
ROWS_PER_PASS = 200_000
_PLANNING = "planning evaluation"


@dataclass(frozen=True)
class Scene:
    """What every evaluator works with.

    Attributes
    ----------
    dtype: of the model's parameters.
    """

    request: Request
    cluster: Cluster
    rows: PartitionedRows
    objective: Objective
    dtype: torch.dtype
    learnable: LearnableRows


class Evaluator(ABC):
    """Scores a model on a split, on all ranks together."""

    def __init__(self, scene: Scene) -> None:
        self._graph = scene.request.graph
        self._reads = scene.request.reads
        self._cluster = scene.cluster
        self._placement = self._graph.placement(scene.cluster.ranks_per_server)
        self._rows = scene.rows
        self.objective = scene.objective
        self._dtype = scene.dtype
        self.learnable = scene.learnable
        self._learned = LeafRows({}, {})
        """of the pass under way"""
        schema = self._graph.schema
        self._target = schema.target_type()
        self._classes = schema.labels[self._target].classes

    def has_split(self, split: str) -> bool:
        """Whether the graph has nodes in that split."""
        return bool(self._graph.schema.splits.get(split))

    @torch.no_grad()
    def score(self, model: torch.nn.Module, split: str) -> float:
        """The metric of a split, equal on every rank.

        Raises
        ------
        ClusterError: a rank or server was lost, or a deadline passed.
        """
        was_training = model.training
        model.eval()
        try:
            sums = self._sums(*self.logits(model, split))
        finally:
            model.train(was_training)
        self._cluster.all_reduce(sums, "control", f"adding up the {split} score")
        return self.objective.metric_from_sums(sums)

    @abstractmethod
    def logits(self, model: torch.nn.Module, split: str) -> tuple[NDArray[np.int64], Tensor]:
        """This rank's share of a split: [n] int64 global ids and [n, classes]."""

    def _sums(self, ids: NDArray[np.int64], logits: Tensor) -> Tensor:
        stored = torch.from_numpy(self._rows.gather("labels", self._target, ids))
        return self.objective.metric_sums(logits.cpu(), self.objective.shaped(stored))

    def _rows_per_chunk(self, width: int) -> int:
        return max(1, _CHUNK_BYTES // (width * self._dtype.itemsize))

    def _read_learned(self, wanted: Mapping[str, Sequence[NDArray[np.int64]]]) -> None:
        """Read the learnable rows of a pass, if there are any: by name of a type, of nodes in
        groups; collective."""
        self._learned = self.learnable.read(wanted, "evaluation")

    def _inputs(self, node_type: str, ids: NDArray[np.int64]) -> Tensor:
        """[n, width]: features of distinct nodes and, behind them, their learnable rows."""
        own, parts = self._reads.inputs[node_type], []
        if own.features:
            rows = torch.from_numpy(self._rows.gather("features", own.node_type, ids))
            parts.append(rows.to(self._cluster.device).to(self._dtype))
        if own.learned:
            parts.append(self._learned.of(node_type, ids))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class LayerWiseEvaluator(Evaluator):
    """Scores on graphs of one node type and one relation.

    Parameters
    ----------
    layers: how many hops the model reads.
    """

    def __init__(self, scene: Scene, layers: int) -> None:
        super().__init__(scene)
        self._layers = layers

    @cached_property
    def _owned(self) -> NDArray[np.int64]:
        """[n] int64, ascending: this rank's nodes."""
        return self._placement.owned(self._target, self._cluster.rank)

    @cached_property
    def _relation(self) -> Relation:
        (found,) = self._graph.schema.relations
        return found

    @cached_property
    def _topology(self) -> Topology:
        return self._graph.topology(self._relation, self._cluster.server)

    @property
    def _feature_dim(self) -> int:
        return self._reads.inputs[self._target].width

    @cached_property
    def _plans(self) -> dict[str, list[NDArray[np.int64]]]:
        """By split, once they were made."""
        return {}

    @cached_property
    def _samplers(self) -> dict[int, NeighborSampler]:
        """By number of hops, once they were made."""
        return {}

    def logits(self, model: torch.nn.Module, split: str) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Evaluator`."""
        if isinstance(model, GNN):
            return self._layer_wise(model, split)
        return self._whole_neighbourhoods(model, split)

    def _layer_wise(self, model: GNN, split: str) -> tuple[NDArray[np.int64], Tensor]:
        first, *plan = self._plan(split)
        self._read_learned({self._target: [first]})
        known = _Rows(first, None)
        stack = make_stack(model, self._sampler(1), self._feature_dim)
        wires = choose_wires(stack, gradients=False)
        for layer, (mine, wire) in enumerate(zip(plan, wires, strict=True)):
            known = _Rows(mine, self._layer(model, layer, mine, known, wire))
        assert known.values is not None
        return known.ids, known.values.reshape(known.ids.size, self._classes)

    def _layer(
        self, model: GNN, index: int, mine: NDArray[np.int64], own: _Rows, wires: Wires
    ) -> Tensor:
        """[mine, width]: one layer of this rank's nodes, in chunks of bounded memory.

        Parameters
        ----------
        own: rows of this rank's nodes from the layer before; of all that any rank reads.
        """
        layer = model.layer(index)
        projected = self._relation in wires.forms
        width = wires.forms[self._relation if projected else self._target].width
        ready = [
            layer.project(rows) if projected else rows for rows in self._prepared(model, index, own)
        ]
        sources = self._with_remote(own.ids, torch.cat(ready), mine)
        outputs = []
        for chunk in self._chunks(mine, width):
            # Draws do not matter where all neighbours are taken.
            subgraph = self._sampler(1).sample(chunk, 0, 0)
            z_src = sources.of(subgraph.nodes[self._target])
            if not projected:
                z_src = layer.project(z_src)
            (block,) = subgraph.blocks(self._cluster.device)
            h_dst = self._stored(own, chunk)
            ready_dst = model.prepare(index, self._alone(chunk), h_dst)
            combined = layer.aggregate(block, z_src, ready_dst)
            out = layer.update(ready_dst, combined)
            outputs.append(model.finish(index, block, h_dst, out))
        return torch.cat(outputs)

    def _prepared(self, model: GNN, index: int, own: _Rows) -> Iterator[Tensor]:
        """A layer's input rows of this rank's nodes, chunk after chunk; one at least."""
        width = own.values.shape[1] if own.values is not None else self._feature_dim
        limit = self._rows_per_chunk(width)
        for start in range(0, max(1, own.ids.size), limit):
            chunk = own.ids[start : start + limit]
            yield model.prepare(index, self._alone(chunk), self._stored(own, chunk))

    def _stored(self, own: _Rows, ids: NDArray[np.int64]) -> Tensor:
        """[n, width]: rows of this rank's nodes from the layer before; input rows at first."""
        return self._inputs(self._target, ids) if own.values is None else own.of(ids)

    def _alone(self, ids: NDArray[np.int64]) -> Block:
        """A block of nodes and no edges: what rows are prepared with one by one."""
        none = torch.empty(0, dtype=torch.int64)
        return Block(
            self._relation,
            num_src=ids.size,
            num_dst=0,
            indptr=torch.zeros(1, dtype=torch.int64),
            indices=none,
            positions=none,
            src_original=torch.from_numpy(self._graph.original_ids(self._target)[ids]),
            dst_original=none,
            src_out_degree=torch.from_numpy(self._topology.out_degrees[ids]),
            dst_in_degree=none,
        ).to(self._cluster.device)

    def _with_remote(
        self, known: NDArray[np.int64], rows: Tensor, mine: NDArray[np.int64]
    ) -> _Rows:
        """Add the rows of other ranks' nodes that ``mine`` read."""
        if self._cluster.world == 1:
            return _Rows(known, rows)
        wanted = self._placement.deal(self._target, self._read_by(mine)).parts()
        wanted[self._cluster.rank] = np.empty(0, np.int64)
        (requests,) = exchange_arrays(self._cluster, [wanted], "control", _PLANNING)
        held = _Rows(known, rows)
        received = self._cluster.exchange(
            [held.of(ids).cpu() for ids in requests],
            [ids.size for ids in wanted],
            "partial",
            "exchanging rows for evaluation",
        )
        parts = list(zip(wanted, received, strict=True))
        parts[self._cluster.rank] = (known, rows.cpu())
        ids = np.concatenate([part for part, _ in parts])
        return _Rows(ids, torch.cat([part for _, part in parts]).to(self._cluster.device))

    def _read_by(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] int64, ascending: the distinct in-neighbours of some of this rank's nodes."""
        return _in_neighbours(self._topology.indptr, self._topology.indices, nodes)

    def _whole_neighbourhoods(
        self, model: torch.nn.Module, split: str
    ) -> tuple[NDArray[np.int64], Tensor]:
        """For a module with only a ``forward``: every node's full k-hop neighbourhood, some nodes a
        pass; fewer where these would be too many rows."""
        mine = read = self._plan(split)[-1]
        for _ in range(self._layers):
            read = np.union1d(read, self._read_by(read))
        self._read_learned({self._target: [read]})
        outputs = [torch.empty((0, self._classes), dtype=self._dtype)]
        todo = [
            mine[start : start + ROOTS_PER_PASS] for start in range(0, mine.size, ROOTS_PER_PASS)
        ]
        while todo:
            chunk = todo.pop(0)
            subgraph = self._sampler(self._layers).sample(chunk, 0, 0)
            if subgraph.nodes[self._target].size > ROWS_PER_PASS and chunk.size > 1:
                todo = [*np.array_split(chunk, 2), *todo]
            else:
                outputs.append(self._of_subgraph(model, subgraph).cpu())
        return mine, torch.cat(outputs)

    def _of_subgraph(self, model: torch.nn.Module, subgraph: Subgraph) -> Tensor:
        inputs = self._inputs(self._target, subgraph.nodes[self._target])
        return run_model(model, subgraph.typed_blocks(self._cluster.device), {self._target: inputs})

    def _plan(self, split: str) -> list[NDArray[np.int64]]:
        """The ids whose input rows are read, and those that each layer computes, ascending: this
        rank's share of what the split depends on."""
        if split not in self._plans:
            placement, target = self._placement, self._target
            needed = np.zeros(self._owned.size, np.bool_)
            scored = np.sort(self._graph.global_ids(target)[self._graph.split(split)])
            asked = [placement.deal(target, scored).of(self._cluster.rank)]
            plan: list[NDArray[np.int64]] = []
            for _ in range(self._layers):
                for ids in asked:
                    needed[placement.place_of(target, ids)] = True
                plan.insert(0, self._owned[needed])
                wanted = placement.deal(target, self._read_by(plan[0])).parts()
                (asked,) = exchange_arrays(self._cluster, [wanted], "control", _PLANNING)
            for ids in asked:
                needed[placement.place_of(target, ids)] = True
            plan.insert(0, self._owned[needed])
            self._plans[split] = plan
        return self._plans[split]

    def _sampler(self, hops: int) -> NeighborSampler:
        if hops not in self._samplers:
            self._samplers[hops] = NeighborSampler(
                {self._relation: self._topology},
                {self._target: self._graph.original_ids(self._target)},
                self._target,
                [-1] * hops,
                seed=0,
            )
        return self._samplers[hops]

    def _chunks(self, ids: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
        """Split ids so that the source rows of a chunk stay within ``_CHUNK_BYTES``; one chunk at
        least."""
        if ids.size == 0:
            yield ids
            return
        rows = np.cumsum(self._topology.in_degrees[ids] + 1)
        limit = self._rows_per_chunk(width)
        inner = np.searchsorted(rows, np.arange(limit, int(rows[-1]), limit)) + 1
        bounds = np.unique(np.concatenate([[0], inner, [ids.size]]))
        for start, stop in pairwise(bounds.tolist()):
            yield ids[start:stop]


@dataclass(frozen=True)
class _Rows:
    """Rows of nodes: ids [n] and values [n, ...]; None = the features."""

    ids: NDArray[np.int64]
    values: Tensor | None

    def of(self, ids: NDArray[np.int64]) -> Tensor:
        """[m, ...]: the rows of some of the nodes."""
        assert self.values is not None
        places = torch.from_numpy(self._index.find(ids))
        return self.values.index_select(0, places.to(self.values.device))

    @cached_property
    def _index(self) -> Index:
        return Index(self.ids)


def _in_neighbours(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], nodes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[n] int64, ascending: the distinct in-neighbours of some nodes."""
    reached = np.zeros(indptr.size - 1, np.bool_)
    _mark_in_neighbours(indptr, indices, nodes, reached)
    return np.flatnonzero(reached)


@numba.njit(cache=True, nogil=True)
def _mark_in_neighbours(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    nodes: NDArray[np.int64],
    reached: NDArray[np.bool_],
) -> None:
    for node in nodes:
        for edge in range(indptr[node], indptr[node + 1]):
            reached[indices[edge]] = True
