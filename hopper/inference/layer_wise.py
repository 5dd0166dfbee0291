"""Rows by layer-wise inference.

Each layer is computed once for every node that the wanted nodes depend on, by the rank that owns
the node. Rows that other ranks read are sent to them, after projection if that makes them narrower.
So features cross a link only if they are narrower than hidden rows. Rows are computed and sent in
pieces of bounded size, and are kept in a :class:`RowSpace` meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cache_server.store.mapped_rows import exceed_memory
from hopper.engines.assemble import make_full_sampler
from hopper.engines.build import make_elsewhere
from hopper.graph.block import Nodes
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.hetero.root_shares import RootShares
from hopper.inference.inference import Inference, Scene, Wanted, check_output
from hopper.inference.layer_shares import NodeRows, Share, exchange_rows, plan_shares
from hopper.inference.row_space import RowSpace, split_rows
from hopper.inference.whole_neighbourhoods import ByRelation, Neighbourhoods
from hopper.micrograph.sample import NeighborSampler
from hopper.models import GNN
from hopper.models.relational import HGNN
from hopper.partials import (
    LayerInputs,
    LayerTransfer,
    RowKind,
    Stack,
    StackLayer,
    choose_transfers,
    make_stack,
    source_type,
)


def make_inference(scene: Scene, model: torch.nn.Module) -> Inference:
    """Make the object that computes rows of a graph's nodes, by the layout of the graph, for models
    of the given model's kind."""
    request, cluster = scene.request, scene.cluster
    sampler = make_full_sampler(request, cluster.server, model, at=scene.at)
    # In-edges of nodes of other servers are drawn by these.
    sampler.elsewhere = make_elsewhere(request.graph, scene.rows, cluster.traffic)
    partitions = request.reads.partitions
    if partitions:
        types, per_server = request.schema.root_types, cluster.ranks_per_server
        shares = {node_type: RootShares(partitions, per_server, node_type) for node_type in types}
        return ByRelation(scene, sampler, shares)
    return (Neighbourhoods if request.reads_times else LayerWise)(scene, sampler)


@dataclass(frozen=True)
class _Step:
    """The computation of one layer on this rank."""

    stack: Stack
    index: int
    transfer: LayerTransfer
    width: int
    """elements of the widest row that the layer reads, makes or sends"""
    share: Share
    rows: Mapping[str, NodeRows] | None
    """by node type, rows of ``share.known`` before the layer; None = the layer is the first"""
    space: RowSpace

    @property
    def layer(self) -> StackLayer:
        """The layer to compute."""
        return self.stack.layers[self.index]


class LayerWise(Inference):
    """Computes a stack of layers one layer at a time.

    Models with only a ``forward()`` are computed from whole neighbourhoods instead.
    """

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        super().__init__(scene, sampler)
        self._sampler_of = cache(self._make_sampler)
        self._plans: dict[object, list[Share]] = {}
        """shares of all layers by nodes and layers' reads, since trials' models may differ"""
        self._neighbourhoods = Neighbourhoods(scene, sampler)

    def shares_work(self, model: torch.nn.Module) -> bool:
        """Return True for stacks of layers."""
        return isinstance(model, GNN | HGNN)

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[Ids, Tensor]:
        """Compute this rank's share of rows layer by layer; see :meth:`Inference.rows`."""
        if not isinstance(model, GNN | HGNN):
            return self._neighbourhoods.rows(model, wanted, space)
        stack = make_stack(model, self.sampler, self._reads.inputs[self.target].width)
        check_output(model, wanted.output, by_relation=False)
        makes_logits = wanted.output == "logits"
        depth = len(stack.layers) - (not makes_logits and not stack.has_head)
        plan = self._plan(wanted, stack, depth)
        transfers = choose_transfers(stack, gradients=False)
        widths = _widths(stack, self._width_of(model))
        space = self._space(plan, widths) if space is None else space
        first = self._first_missing(stack, depth, space)
        if first == 0:
            self._read_learned({name: [ids] for name, ids in plan[0].known.items()})
        rows: dict[str, NodeRows] | None = None
        for index in range(max(0, first - 1), depth):
            if space.is_permanent and index >= first:
                self._cluster.arrive(f"layer {index}")
                # All ranks have finished the previous layer, so nobody reads these any more.
                space.drop(f"layer-{index - 1}-reads-")
                space.drop(f"layer-{index - 2}-rows-")
            step = _Step(stack, index, transfers[index], widths[index], plan[index], rows, space)
            rows = self._compute_layer(step, is_stored=index < first)
        assert rows is not None
        target = wanted.node_type or self.target
        ids, output = plan[-1].mine[target], rows[target].values
        if stack.has_head and makes_logits:
            hidden = output
            pieces = split_rows(ids.size, self._rows_per_chunk(max(1, hidden[:1].numel())))
            device = self._cluster.device
            output = space.fill(
                "logits", pieces, lambda piece: stack.logits(hidden[piece].to(device))
            )
            space.await_others()
        return ids, output.reshape(ids.size, output.shape[1:].numel())

    def _space(self, plan: Sequence[Share], widths: Sequence[int]) -> RowSpace:
        """Keep rows in memory, or in files of the run's folder where they would not fit."""
        rows = [
            sum(ids.size for ids in (*share.known.values(), *share.mine.values()))
            + sum(ids.size for others in share.wanted.values() for ids in others)
            for share in plan
        ]
        most = max(count * width for count, width in zip(rows, widths, strict=False))
        if not exceed_memory(most * self._dtype.itemsize):
            return RowSpace()
        folder = self.scene.request.config.train.run_dir or tempfile.gettempdir()
        return RowSpace(Path(folder), permanent=False)

    def _first_missing(self, stack: Stack, depth: int, space: RowSpace) -> int:
        """Return the first layer whose rows any rank lacks; collective if the space keeps rows."""
        if not space.is_permanent:
            return 0
        full = [
            index
            for index, layer in enumerate(stack.layers[:depth])
            if all(space.is_full(f"layer-{index}-rows-{n}") for n in range(len(layer.types)))
        ]
        missing = torch.tensor([max(full, default=-1) + 1])
        by_rank = self._cluster.all_gather(missing, "control", "finding the layers to do")
        return int(by_rank.min())

    def _plan(self, wanted: Wanted, stack: Stack, depth: int) -> list[Share]:
        """Return this rank's share of every layer; collective at the first call for these nodes."""
        layers = stack.layers[:depth]
        target = wanted.node_type or self.target
        key = wanted.name, target, wanted.output, *(tuple(layer.aggregations) for layer in layers)
        if key not in self._plans:
            stored = {name: self._reads.types[name] for name in stack.widths}
            self._plans[key] = plan_shares(
                self._cluster,
                self.placement,
                self.sampler,
                stored,
                target,
                wanted.ids,
                layers,
            )
        return self._plans[key]

    def _compute_layer(self, step: _Step, *, is_stored: bool) -> dict[str, NodeRows]:
        """Compute this rank's rows after a layer by type, unless they are stored; collective."""
        sources, rows = {} if is_stored else self._sources(step), {}
        for number, name in enumerate(step.layer.types):
            into = [relation for relation in step.layer.aggregations if relation.dst == name]
            ids, table = step.share.mine[name], f"layer-{step.index}-rows-{number}"
            make = partial(self._new_rows, step, name, into, ids, sources)
            values = step.space.fill(table, self._chunks(into, ids, step.width), make)
            rows[name] = NodeRows(ids, values, self._cluster.device)
        step.space.await_others()
        return rows

    def _new_rows(
        self,
        step: _Step,
        name: str,
        into: Sequence[Relation],
        ids: Ids,
        sources: Mapping[RowKind, NodeRows],
        piece: slice,
    ) -> Tensor:
        """Compute the rows after a layer of the nodes ``ids[piece]`` of a type: [n, ...]."""
        chunk = ids[piece]
        # Epoch and iteration do not matter, since all neighbours are taken.
        subgraph = self._sampler_of(name, tuple(into)).sample(chunk, 0, 0)
        (blocks,) = self._blocks(subgraph)
        aggregations = step.layer.aggregations
        kinds = {kind: source_type(kind) for kind in map(step.transfer.kind_of, into)}
        of_kind = {kind: sources[kind].of(subgraph.nodes[src]) for kind, src in kinds.items()}
        read = {relation: of_kind[step.transfer.kind_of(relation)] for relation in into}
        before = self._before(step, name, chunk)
        ready = {name: step.stack.prepare(step.index, self._nodes(name, chunk), before)}
        projected = None
        if step.transfer.merged:
            ready |= {relation.src: rows for relation, rows in read.items()}
        else:
            projected = {
                relation: rows
                if step.transfer.kind_of(relation) == relation
                else aggregations[relation].project(rows)
                for relation, rows in read.items()
            }
        inputs = LayerInputs(blocks, {name: before}, ready, projected)
        return step.stack.new_rows(step.index, inputs)[name]

    def _sources(self, step: _Step) -> dict[RowKind, NodeRows]:
        """Return, by kind, the rows that new rows read, this rank's first; collective."""
        share, space, device = step.share, step.space, self._cluster.device
        sources: dict[RowKind, NodeRows] = {}
        kinds = dict.fromkeys(map(step.transfer.kind_of, step.layer.aggregations))
        for number, kind in enumerate(kinds):
            name, table = source_type(kind), f"layer-{step.index}-reads-{number}"
            ids, others = share.known[name], share.wanted[name]
            pieces = split_rows(ids.size, self._rows_per_chunk(step.width))
            room = sum(nodes.size for nodes in others)
            values = space.fill(table, pieces, partial(self._rows_to_send, step, kind), room)
            sources[kind] = NodeRows(np.concatenate([ids, *others]), values, device)
        space.await_others()
        if self._cluster.world > 1:
            # A round has rows of every kind from every rank.
            most = self._rows_per_chunk(step.width * self._cluster.world * len(sources))
            exchange_rows(self._cluster, self._dtype, share, sources, most)
        # Sorted, so that names of tables are the same in every process.
        for number, name in enumerate(sorted(step.transfer.raw)):
            table = f"layer-{step.index}-reads-raw-{number}"
            make = partial(self._enter_features, step, name, sources[name])
            pieces = split_rows(sources[name].ids.size, self._rows_per_chunk(step.width))
            ready = space.fill(table, pieces, make)
            sources[name] = NodeRows(sources[name].ids, ready, device)
        return sources

    def _rows_to_send(self, step: _Step, kind: RowKind, piece: slice) -> Tensor:
        """Return a piece of this rank's rows of a kind, in the form that is sent: [n, ...]."""
        name = source_type(kind)
        chunk = step.share.known[name][piece]
        if kind in step.transfer.raw:
            return self._inputs(name, chunk)
        rows = self._before(step, name, chunk)
        rows = step.stack.prepare(step.index, self._nodes(name, chunk), rows)
        if isinstance(kind, Relation):
            rows = step.layer.aggregations[kind].project(rows)
        return rows

    def _enter_features(self, step: _Step, name: str, rows: NodeRows, piece: slice) -> Tensor:
        """Convert a piece of exchanged features to the rows that the layer reads: [n, ...]."""
        entered = step.stack.enter(name, rows.values[piece].to(self._cluster.device))
        return step.stack.prepare(step.index, self._nodes(name, rows.ids[piece]), entered)

    def _before(self, step: _Step, name: str, ids: Ids) -> Tensor:
        """Return rows of some of this rank's nodes before a layer: [n, ...]."""
        if step.rows is None:
            return step.stack.enter(name, self._inputs(name, ids))
        return step.rows[name].of(ids)

    def _nodes(self, name: str, ids: Ids) -> Nodes:
        """Return nodes of a type with original ids, and degrees if there is a single relation."""
        original = torch.from_numpy(self.sampler.original_ids[name][ids])
        topologies = list(self.sampler.topologies.values())
        degree = torch.from_numpy(topologies[0].out_degrees[ids]) if len(topologies) == 1 else None
        return Nodes(self._reads.types[name], original, degree).to(self._cluster.device)

    def _make_sampler(self, name: str, into: tuple[Relation, ...]) -> NeighborSampler:
        """Make a one-hop sampler that takes all neighbours in some relations into a type."""
        topologies = {relation: self.sampler.topologies[relation] for relation in into}
        ids, names = self.sampler.original_ids, self.sampler.names
        return NeighborSampler(topologies, ids, name, [-1], seed=0, names=names)

    def _chunks(self, into: Sequence[Relation], ids: Ids, width: int) -> list[slice]:
        """Split ids into chunks with a bounded number of source rows; at least one chunk."""
        if ids.size == 0:
            return [slice(0, 0)]
        degrees = [self.sampler.topologies[relation].in_degrees[ids] for relation in into]
        rows = np.cumsum(np.sum(degrees, 0, dtype=np.int64) + np.ones(ids.size, np.int64))
        limit = self._rows_per_chunk(width)
        inner = np.searchsorted(rows, np.arange(limit, int(rows[-1]), limit)) + 1
        bounds = np.unique(np.concatenate([[0], inner, [ids.size]]))
        return [slice(start, stop) for start, stop in pairwise(bounds.tolist())]


def _widths(stack: Stack, classes: int) -> list[int]:
    """Return, by layer, the elements of the widest row that it reads, projects or makes."""
    read_widths = [
        [row.numel() for row in rows.values()]
        + [
            layer.aggregations[relation].project(rows[relation.src]).numel()
            for relation in layer.aggregations
            if relation.src in rows
        ]
        for layer, rows in zip(stack.layers, stack.lone_rows(), strict=True)
    ]
    read_widths[0] += stack.widths.values()
    return [max(read + made) for read, made in pairwise([*read_widths, [classes]])]
