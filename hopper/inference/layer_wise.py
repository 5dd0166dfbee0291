"""Rows by layer-wise inference.

Each layer is computed once for every node that the wanted nodes depend on, by the rank that owns
it. What other ranks read of a node is sent to them, projected where that makes it narrower, so no
row of features crosses a link unless it is narrower than a hidden one. Rows are made, and sent, in
pieces of bounded size; where they lie meanwhile is a :class:`RowSpace`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.array_exchange import exchange_arrays
from hopper.graph.block import Nodes
from hopper.graph.schema import Relation
from hopper.inference.inference import Inference, Scene, Wanted, check_output
from hopper.inference.neighbourhoods import Neighbourhoods
from hopper.inference.row_space import MemoryRows, RowSpace
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

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Rows:
    """Rows of nodes, wherever they lie.

    Attributes
    ----------
    ids: [n]. values: [n, ...]. device: where they are computed with.
    """

    ids: Ids
    values: Tensor
    device: torch.device

    def of(self, ids: Ids) -> Tensor:
        """[m, ...], on the device: the rows of some of the nodes."""
        places = torch.from_numpy(self._index.find(ids))
        return self.values.index_select(0, places.to(self.values.device)).to(self.device)

    @cached_property
    def _index(self) -> Index:
        return Index(self.ids)


@dataclass(frozen=True)
class _Share:
    """This rank's share of what the wanted nodes need of a layer; all of it by node type.

    Attributes
    ----------
    known: [n] int64, ascending: its nodes that any rank reads. mine: those of whom it computes
        new rows.
    wanted: by rank, what ``mine`` reads of the others. asked: by rank, what others read of it.
    longest: how many nodes of a type any rank reads of any other, at most.
    """

    known: Mapping[str, Ids]
    mine: Mapping[str, Ids]
    wanted: Mapping[str, list[Ids]]
    asked: Mapping[str, list[Ids]]
    longest: int = 0


@dataclass(frozen=True)
class _Step:
    """One layer, and the rows that this rank has before it: of ``share.known``, by type; None
    before the first.

    Attributes
    ----------
    width: of the widest row that the layer reads, makes, or hands on.
    """

    stack: Stack
    index: int
    wires: Wires
    width: int
    share: _Share
    rows: Mapping[str, _Rows] | None
    space: RowSpace

    @property
    def layer(self) -> StackLayer:
        """The layer."""
        return self.stack.layers[self.index]

    def kind(self, relation: Relation) -> RowKind:
        """What ranks hand each other for a relation. (In training each pair of ranks has a choice;
        here rows are projected where one relation reads them, if that makes them narrower.)"""
        return relation.src if relation.src in self.wires.forms else relation

    def kinds(self) -> list[RowKind]:
        """Those of all of its relations."""
        return list(dict.fromkeys(map(self.kind, self.layer.aggregations)))


class LayerWise(Inference):
    """Computes stacks of layers; models with only a ``forward()`` by whole neighbourhoods."""

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        super().__init__(scene, sampler)
        self._samplers: dict[tuple[str, tuple[Relation, ...]], NeighborSampler] = {}
        """by type and relations into it, of one hop, once they were made"""
        self._plans: dict[object, list[_Share]] = {}
        """by nodes and what layers read, once they were made: trials may have different models"""
        self._whole = Neighbourhoods(scene, sampler)

    def takes_any_number(self, model: torch.nn.Module) -> bool:
        """See :class:`Inference`: what wanted nodes have in common is computed once."""
        return not isinstance(model, GNN | HGNN)

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[Ids, Tensor]:
        """See :class:`Inference`."""
        if not isinstance(model, GNN | HGNN):
            return self._whole.rows(model, wanted, space)
        space = MemoryRows() if space is None else space
        stack = make_stack(model, self._sampler, self._reads.inputs[self.target].width)
        check_output(model, wanted.output, by_relation=False)
        makes_logits = wanted.output == "logits"
        depth = len(stack.layers) - (not makes_logits and not stack.has_head)
        plan = self._plan(wanted, stack, depth)
        wires, widths = choose_wires(stack, gradients=False), _widths(stack, self._width_of(model))
        first = self._first_missing(stack, depth, space)
        if first == 0:
            self._read_learned({name: [ids] for name, ids in plan[0].known.items()})
        rows: dict[str, _Rows] | None = None
        for index in range(max(0, first - 1), depth):
            if space.keeps and index >= first:
                self._cluster.arrive(f"layer {index}")
                # Nobody reads these any more, now that all ranks have the layer behind them.
                space.drop(_tables(stack, index - 1, reads=True))
                space.drop(_tables(stack, index - 2, reads=False))
            step = _Step(stack, index, wires[index], widths[index], plan[index], rows, space)
            rows = self._layer(step, is_there=index < first)
        assert rows is not None
        target = wanted.node_type or self.target
        ids, own = plan[-1].mine[target], rows[target].values
        if stack.has_head and makes_logits:
            pieces = _pieces(ids.size, self._rows_per_chunk(max(1, own[:1].numel())))
            hidden = own
            own = space.fill("logits", pieces, lambda piece: self._classified(stack, hidden[piece]))
            space.await_others()
        return ids, own.reshape(ids.size, own.shape[1:].numel())

    def _classified(self, stack: Stack, rows: Tensor) -> Tensor:
        return stack.logits(rows.to(self._cluster.device))

    def _first_missing(self, stack: Stack, depth: int, space: RowSpace) -> int:
        """The first layer whose rows some rank does not have; collective where any are kept."""
        if not space.keeps:
            return 0
        full = [
            all(map(space.is_full, _tables(stack, index, reads=False))) for index in range(depth)
        ]
        found = torch.tensor(
            [max((index + 1 for index, is_full in enumerate(full) if is_full), default=0)]
        )
        return int(self._cluster.all_gather(found, "control", "finding the layers to do").min())

    def _plan(self, wanted: Wanted, stack: Stack, depth: int) -> list[_Share]:
        """This rank's share of every layer; collective, the first time."""
        layers = stack.layers[:depth]
        target = wanted.node_type or self.target
        key = wanted.name, target, wanted.output, *(tuple(layer.aggregations) for layer in layers)
        if key in self._plans:
            return self._plans[key]
        placement, rank, names = self.placement, self._cluster.rank, list(stack.widths)
        owned = {name: placement.owned(self._stored(name), rank) for name in names}
        needed = {name: np.zeros(ids.size, np.bool_) for name, ids in owned.items()}

        def mark(asked: Mapping[str, Sequence[Ids]]) -> dict[str, Ids]:
            for name, parts in asked.items():
                for ids in parts:
                    needed[name][placement.place_of(self._stored(name), ids)] = True
            return {name: ids[needed[name]] for name, ids in owned.items()}

        mine = mark({target: [placement.deal(self._stored(target), wanted.ids).of(rank)]})
        plan: list[_Share] = []
        for layer in reversed(layers):
            reads = {name: self._read_by(mine, name, layer) for name in names}
            told = [[ids.astype(np.int32) for ids in parts] for parts in reads.values()]
            arrived = exchange_arrays(self._cluster, told, "control", "planning evaluation")
            asked = {
                name: [ids.astype(np.int64) for ids in parts]
                for name, parts in zip(names, arrived, strict=True)
            }
            known = mark(asked)
            for parts in (*reads.values(), *asked.values()):
                parts[rank] = np.empty(0, np.int64)
            plan.insert(0, _Share(known, mine, reads, asked, self._longest(reads)))
            mine = known
        return self._plans.setdefault(key, plan)

    def _longest(self, reads: Mapping[str, Sequence[Ids]]) -> int:
        """The most nodes of a type that any rank reads of any other; collective."""
        if self._cluster.world == 1:
            return 0
        own = torch.tensor([max(ids.size for parts in reads.values() for ids in parts)])
        return int(self._cluster.all_gather(own, "control", "planning evaluation").max())

    def _read_by(self, mine: Mapping[str, Ids], name: str, layer: StackLayer) -> list[Ids]:
        """By rank, [n] int64, ascending: the nodes of a type that a layer's new rows read."""
        reached = np.zeros(self._sampler.original_ids[name].size, np.bool_)
        for each in layer.aggregations:
            if each.src == name:
                topology = self._sampler.topologies[each]
                _mark_sources(topology.indptr, topology.indices, mine[each.dst], reached)
        return self.placement.deal(self._stored(name), np.flatnonzero(reached)).parts()

    def _layer(self, step: _Step, *, is_there: bool) -> dict[str, _Rows]:
        """By type, the new rows of this rank's nodes, in chunks of bounded memory; collective.

        Parameters
        ----------
        is_there: whether all ranks have all of them already.
        """
        tables = _tables(step.stack, step.index, reads=False)
        sources = {} if is_there else self._sources(step)
        found = {}
        for name, table in zip(step.layer.types, tables, strict=True):
            into, ids = [e for e in step.layer.aggregations if e.dst == name], step.share.mine[name]
            make = partial(self._new_rows, step, name, into, ids, sources)
            values = step.space.fill(table, self._chunks(into, ids, step.width), make)
            found[name] = _Rows(ids, values, self._cluster.device)
        step.space.await_others()
        return found

    def _new_rows(
        self,
        step: _Step,
        name: str,
        into: Sequence[Relation],
        ids: Ids,
        sources: Mapping[RowKind, _Rows],
        piece: slice,
    ) -> Tensor:
        """[n, ...]: those of some of a type's nodes ``ids``."""
        chunk = ids[piece]
        # Draws do not matter where all neighbours are taken.
        subgraph = self._sampler_of(name, tuple(into)).sample(chunk, 0, 0)
        (blocks,) = self._blocks(subgraph)
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
        share, space, device = step.share, step.space, self._cluster.device
        found: dict[RowKind, _Rows] = {}
        tables = _tables(step.stack, step.index, reads=True)
        for kind, table in zip(step.kinds(), tables, strict=False):
            name = source_type(kind)
            ids, others = share.known[name], share.wanted[name]
            pieces = _pieces(ids.size, self._rows_per_chunk(step.width))
            room = sum(each.size for each in others)
            values = space.fill(table, pieces, partial(self._own_rows, step, kind), room)
            found[kind] = _Rows(np.concatenate([ids, *others]), values, device)
        space.await_others()
        if self._cluster.world > 1:
            self._hand_over(step, found)
        # In an order that is the same in every process.
        for name, table in zip(sorted(step.wires.raw), tables[len(found) :], strict=False):
            made = partial(self._ready, step, name, found[name])
            pieces = _pieces(found[name].ids.size, self._rows_per_chunk(step.width))
            ready = space.fill(table, pieces, made)
            found[name] = _Rows(found[name].ids, ready, device)
        return found

    def _hand_over(self, step: _Step, rows: Mapping[RowKind, _Rows]) -> None:
        """Fill the room behind this rank's rows with those of others, in rounds of bounded size;
        collective."""
        share, kinds = step.share, {kind: source_type(kind) for kind in rows}
        most = self._rows_per_chunk(step.width * self._cluster.world * len(kinds))
        own = {
            kind: _Rows(
                share.known[name], rows[kind].values[: share.known[name].size], self._cluster.device
            )
            for kind, name in kinds.items()
        }
        for first in range(0, share.longest, most):
            piece = slice(first, first + most)
            asked = [[ids[piece] for ids in share.asked[name]] for name in kinds.values()]
            coming = [[ids[piece].size for ids in share.wanted[name]] for name in kinds.values()]
            exchange = KindsExchange(
                self._cluster,
                RunLog(None),
                {
                    kind: own[kind].of(np.concatenate(ids))
                    for kind, ids in zip(kinds, asked, strict=True)
                },
                [[ids.size for ids in parts] for parts in asked],
                coming,
                self._dtype,
                "exchanging rows for evaluation",
            )
            for kind, parts in exchange.finish().items():
                place = share.known[kinds[kind]].size
                for ids, part in zip(share.wanted[kinds[kind]], parts, strict=True):
                    start = place + min(first, ids.size)
                    rows[kind].values[start : start + len(part)] = part.to(rows[kind].values.device)
                    place += ids.size

    def _own_rows(self, step: _Step, kind: RowKind, piece: slice) -> Tensor:
        """[n, ...]: some of this rank's rows of a kind, as they travel."""
        name = source_type(kind)
        chunk = step.share.known[name][piece]
        if kind in step.wires.raw:
            return self._inputs(name, chunk)
        rows = self._before(step, name, chunk)
        rows = step.stack.prepare(step.index, self._nodes(name, chunk), rows)
        if isinstance(kind, Relation):
            rows = step.layer.aggregations[kind].project(rows)
        return rows

    def _ready(self, step: _Step, name: str, rows: _Rows, piece: slice) -> Tensor:
        """[n, ...]: rows of features that have travelled, as the layer reads them."""
        entered = step.stack.enter(name, rows.values[piece].to(self._cluster.device))
        return step.stack.prepare(step.index, self._nodes(name, rows.ids[piece]), entered)

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

    def _chunks(self, into: Sequence[Relation], ids: Ids, width: int) -> list[slice]:
        """Split ids so that the source rows of a chunk stay within bounds; one chunk at least."""
        if ids.size == 0:
            return [slice(0, 0)]
        degrees = [self._sampler.topologies[each].in_degrees[ids] for each in into]
        rows = np.cumsum(np.sum(degrees, 0, dtype=np.int64) + np.ones(ids.size, np.int64))
        limit = self._rows_per_chunk(width)
        inner = np.searchsorted(rows, np.arange(limit, int(rows[-1]), limit)) + 1
        bounds = np.unique(np.concatenate([[0], inner, [ids.size]]))
        return [slice(start, stop) for start, stop in pairwise(bounds.tolist())]


def _pieces(count: int, most: int) -> list[slice]:
    """``count`` rows in pieces of ``most`` at most; one piece at least."""
    return [slice(start, min(start + most, count)) for start in range(0, max(1, count), most)]


def _widths(stack: Stack, classes: int) -> list[int]:
    """By layer, numbers of the widest row that it reads, projects or makes."""
    read = [
        [row.numel() for row in rows.values()]
        + [
            layer.aggregations[each].project(rows[each.src]).numel()
            for each in layer.aggregations
            if each.src in rows
        ]
        for layer, rows in zip(stack.layers, stack.lone_rows(), strict=True)
    ]
    read[0] += stack.widths.values()
    return [max(own + after) for own, after in pairwise([*read, [classes]])]


def _tables(stack: Stack, index: int, *, reads: bool) -> list[str]:
    """Names of tables in a row space: of what a layer reads, by kind, or of its new rows, by type;
    none of layers that there are not."""
    if index < 0:
        return []
    layer = stack.layers[index]
    if reads:
        most = 2 * len(layer.aggregations) + len(stack.widths)
        return [f"layer-{index}-reads-{number}" for number in range(most)]
    return [f"layer-{index}-rows-{number}" for number in range(len(layer.types))]


@kernel
def _mark_sources(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    nodes: NDArray[np.int64],
    reached: NDArray[np.bool_],
) -> None:
    for node in nodes:
        for edge in range(indptr[node], indptr[node + 1]):
            reached[indices[edge]] = True
