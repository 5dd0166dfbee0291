"""Scores by layer-wise inference.

Each layer is computed once for every node that the scored nodes depend on, by the rank that owns
it. What other ranks read of a node is sent to them, projected where that makes it narrower, so no
row of features crosses a link unless it is narrower than a hidden one.
"""

from __future__ import annotations

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
from hopper.graph.block import Nodes
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler, StoredNames
from hopper.models import GNN
from hopper.models.relational import HGNN
from hopper.partials import (
    KindsExchange,
    LayerInputs,
    RowKind,
    Stack,
    StackLayer,
    Wires,
    choose_wires,
    make_stack,
    source_type,
)
from hopper.partition.id_index import Index
from hopper.run_log import RunLog
from hopper.train.evaluate import Evaluator, Scene
from hopper.train.neighbourhood_evaluate import NeighbourhoodEvaluator

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Rows:
    """Rows of nodes: ids [n] and values [n, ...]."""

    ids: Ids
    values: Tensor

    def of(self, ids: Ids) -> Tensor:
        """[m, ...]: the rows of some of the nodes."""
        places = torch.from_numpy(self._index.find(ids))
        return self.values.index_select(0, places.to(self.values.device))

    @cached_property
    def _index(self) -> Index:
        return Index(self.ids)


@dataclass(frozen=True)
class _Share:
    """This rank's share of what a split needs of a layer; all of it by node type.

    Attributes
    ----------
    known: [n] int64, ascending: its nodes that any rank reads. mine: those of whom it computes
        new rows.
    wanted: by rank, what ``mine`` reads of the others. asked: by rank, what others read of it.
    """

    known: Mapping[str, Ids]
    mine: Mapping[str, Ids]
    wanted: Mapping[str, list[Ids]]
    asked: Mapping[str, list[Ids]]


@dataclass(frozen=True)
class _Step:
    """One layer, and the rows that this rank has before it: of ``share.known``, by type; None
    before the first."""

    stack: Stack
    index: int
    wires: Wires
    share: _Share
    rows: Mapping[str, _Rows] | None

    @property
    def layer(self) -> StackLayer:
        """The layer."""
        return self.stack.layers[self.index]

    def kind(self, relation: Relation) -> RowKind:
        """What ranks hand each other for a relation. (In training each pair of ranks has a choice;
        here rows are projected where one relation reads them, if that makes them narrower.)"""
        return relation.src if relation.src in self.wires.forms else relation


class LayerWiseEvaluator(Evaluator):
    """Scores stacks of layers; models with only a ``forward()`` by whole neighbourhoods.

    Parameters
    ----------
    sampler: which takes all neighbours that the model reads.
    """

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        super().__init__(scene)
        self._sampler = sampler
        self._samplers: dict[tuple[str, tuple[Relation, ...]], NeighborSampler] = {}
        """by type and relations into it, of one hop, once they were made"""
        self._plans: dict[object, list[_Share]] = {}
        """by split and what layers read, once they were made: trials may have different models"""
        self._whole = NeighbourhoodEvaluator(scene, sampler)

    def logits(self, model: torch.nn.Module, split: str) -> tuple[Ids, Tensor]:
        """See :class:`Evaluator`."""
        if not isinstance(model, GNN | HGNN):
            return self._whole.logits(model, split)
        stack = make_stack(model, self._sampler, self._reads.inputs[self._target].width)
        plan, wires = self._plan(split, stack), choose_wires(stack, gradients=False)
        self._read_learned({name: [ids] for name, ids in plan[0].known.items()})
        rows: dict[str, _Rows] | None = None
        for index, share in enumerate(plan):
            rows = self._layer(_Step(stack, index, wires[index], share, rows))
        assert rows is not None
        logits = stack.logits({name: own.values for name, own in rows.items()})
        ids = plan[-1].mine[self._target]
        return ids, logits.reshape(ids.size, self._classes)

    def _plan(self, split: str, stack: Stack) -> list[_Share]:
        """This rank's share of every layer; collective, the first time."""
        key = split, *(tuple(layer.aggregations) for layer in stack.layers)
        if key in self._plans:
            return self._plans[key]
        placement, rank, names = self._placement, self._cluster.rank, list(stack.widths)
        owned = {name: placement.owned(self._stored(name), rank) for name in names}
        needed = {name: np.zeros(ids.size, np.bool_) for name, ids in owned.items()}

        def mark(asked: Mapping[str, Sequence[Ids]]) -> dict[str, Ids]:
            for name, parts in asked.items():
                for ids in parts:
                    needed[name][placement.place_of(self._stored(name), ids)] = True
            return {name: ids[needed[name]] for name, ids in owned.items()}

        mine = mark({self._target: [placement.deal(self._target, self._scored(split)).of(rank)]})
        plan: list[_Share] = []
        for layer in reversed(stack.layers):
            wanted = {name: self._read_by(mine, name, layer) for name in names}
            told = [[ids.astype(np.int32) for ids in parts] for parts in wanted.values()]
            arrived = exchange_arrays(self._cluster, told, "control", "planning evaluation")
            asked = {
                name: [ids.astype(np.int64) for ids in parts]
                for name, parts in zip(names, arrived, strict=True)
            }
            known = mark(asked)
            for parts in (*wanted.values(), *asked.values()):
                parts[rank] = np.empty(0, np.int64)
            plan.insert(0, _Share(known, mine, wanted, asked))
            mine = known
        return self._plans.setdefault(key, plan)

    def _read_by(self, mine: Mapping[str, Ids], name: str, layer: StackLayer) -> list[Ids]:
        """By rank, [n] int64, ascending: the nodes of a type that a layer's new rows read."""
        reached = np.zeros(self._sampler.original_ids[name].size, np.bool_)
        for each in layer.aggregations:
            if each.src == name:
                topology = self._sampler.topologies[each]
                _mark_sources(topology.indptr, topology.indices, mine[each.dst], reached)
        return self._placement.deal(self._stored(name), np.flatnonzero(reached)).parts()

    def _layer(self, step: _Step) -> dict[str, _Rows]:
        """By type, the new rows of this rank's nodes, in chunks of bounded memory."""
        sources, found = self._sources(step), {}
        width = max(form.width for form in step.wires.forms.values())
        for name in step.layer.types:
            into, ids = [e for e in step.layer.aggregations if e.dst == name], step.share.mine[name]
            outputs = [
                self._new_rows(step, name, into, chunk, sources)
                for chunk in self._chunks(into, ids, width)
            ]
            found[name] = _Rows(ids, torch.cat(outputs))
        return found

    def _new_rows(
        self,
        step: _Step,
        name: str,
        into: Sequence[Relation],
        chunk: Ids,
        sources: Mapping[RowKind, _Rows],
    ) -> Tensor:
        """[n, ...]: those of some nodes of a type."""
        # Draws do not matter where all neighbours are taken.
        subgraph = self._sampler_of(name, tuple(into)).sample(chunk, 0, 0)
        (blocks,) = subgraph.typed_blocks(self._cluster.device)
        aggregations = step.layer.aggregations
        kinds = {kind: source_type(kind) for kind in map(step.kind, into)}
        of_kind = {kind: sources[kind].of(subgraph.nodes[own]) for kind, own in kinds.items()}
        read = {each: of_kind[step.kind(each)] for each in into}
        before = self._before(step, name, chunk)
        ready = {name: step.stack.prepare(step.index, self._nodes(name, chunk), before)}
        projected = None
        if step.wires.merged:
            ready |= {each.src: rows for each, rows in read.items()}
        else:
            projected = {
                each: rows if step.kind(each) == each else aggregations[each].project(rows)
                for each, rows in read.items()
            }
        given = LayerInputs(blocks, {name: before}, ready, projected)
        return step.stack.new_rows(step.index, given)[name]

    def _sources(self, step: _Step) -> dict[RowKind, _Rows]:
        """By kind, the rows of this rank's nodes and, behind them, those of others' that its new
        rows read; collective."""
        share = step.share
        kinds = dict.fromkeys(map(step.kind, step.layer.aggregations))
        own = {kind: self._own_rows(step, kind) for kind in kinds}
        if self._cluster.world > 1:
            asked, wanted = (
                [side[source_type(kind)] for kind in kinds] for side in (share.asked, share.wanted)
            )
            sent = [own[kind].of(np.concatenate(ids)) for kind, ids in zip(own, asked, strict=True)]
            exchange = KindsExchange(
                self._cluster,
                RunLog(None),
                dict(zip(own, sent, strict=True)),
                [[ids.size for ids in parts] for parts in asked],
                [[ids.size for ids in parts] for parts in wanted],
                self._dtype,
                "exchanging rows for evaluation",
            )
            for (kind, rows), ids in zip(exchange.finish().items(), wanted, strict=True):
                every = np.concatenate([own[kind].ids, *ids])
                own[kind] = _Rows(every, torch.cat([own[kind].values, *rows]))
        for name in step.wires.raw:
            entered = step.stack.enter(name, own[name].values)
            ready = step.stack.prepare(step.index, self._nodes(name, own[name].ids), entered)
            own[name] = _Rows(own[name].ids, ready)
        return own

    def _own_rows(self, step: _Step, kind: RowKind) -> _Rows:
        """This rank's rows of a kind, as they travel."""
        name, parts = source_type(kind), []
        ids, limit = step.share.known[name], self._rows_per_chunk(step.stack.widths[name])
        for start in range(0, max(1, ids.size), limit):
            chunk = ids[start : start + limit]
            if kind in step.wires.raw:
                parts.append(self._inputs(name, chunk))
                continue
            rows = self._before(step, name, chunk)
            rows = step.stack.prepare(step.index, self._nodes(name, chunk), rows)
            if isinstance(kind, Relation):
                rows = step.layer.aggregations[kind].project(rows)
            parts.append(rows)
        return _Rows(ids, torch.cat(parts))

    def _before(self, step: _Step, name: str, ids: Ids) -> Tensor:
        """[n, ...]: rows of some of this rank's nodes before a layer."""
        if step.rows is None:
            return step.stack.enter(name, self._inputs(name, ids))
        return step.rows[name].of(ids)

    def _nodes(self, name: str, ids: Ids) -> Nodes:
        """Nodes of a type: what rows are prepared with; degrees too, where one relation is read."""
        original = torch.from_numpy(self._sampler.original_ids[name][ids])
        topologies = list(self._sampler.topologies.values())
        degree = torch.from_numpy(topologies[0].out_degrees[ids]) if len(topologies) == 1 else None
        return Nodes(self._stored(name), original, degree).to(self._cluster.device)

    def _stored(self, name: str) -> str:
        return self._reads.types[name]

    def _sampler_of(self, name: str, into: tuple[Relation, ...]) -> NeighborSampler:
        """What takes all neighbours by some relations into a type."""
        if (name, into) not in self._samplers:
            self._samplers[name, into] = NeighborSampler(
                {each: self._sampler.topologies[each] for each in into},
                self._sampler.original_ids,
                name,
                [-1],
                seed=0,
                names=StoredNames(self._sampler.drawn_as, self._sampler.stored_as),
            )
        return self._samplers[name, into]

    def _chunks(self, into: Sequence[Relation], ids: Ids, width: int) -> Iterator[Ids]:
        """Split ids so that the source rows of a chunk stay within bounds; one chunk at least."""
        if ids.size == 0:
            yield ids
            return
        degrees = [self._sampler.topologies[each].in_degrees[ids] for each in into]
        rows = np.cumsum(np.sum(degrees, 0, dtype=np.int64) + np.ones(ids.size, np.int64))
        limit = self._rows_per_chunk(width)
        inner = np.searchsorted(rows, np.arange(limit, int(rows[-1]), limit)) + 1
        bounds = np.unique(np.concatenate([[0], inner, [ids.size]]))
        for start, stop in pairwise(bounds.tolist()):
            yield ids[start:stop]


@numba.njit(cache=True, nogil=True)
def _mark_sources(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    nodes: NDArray[np.int64],
    reached: NDArray[np.bool_],
) -> None:
    for node in nodes:
        for edge in range(indptr[node], indptr[node + 1]):
            reached[indices[edge]] = True
