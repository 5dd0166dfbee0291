"""Naive feature-centric training: a model travels to the rows of its mini-batch.

HopGNN, section 3.2. Rows never travel. Models travel with the partial sums of their first layer on
the way out, and with the gradients of these on the way back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.baselines.first_hops import (
    FirstHopsPlan,
    check_first_layer,
    draw_first_hops,
    first_block,
    score_roots,
)
from benchmarks.baselines.split_layer import Parts, SplitLayer, split_layer
from hopper.engines import Engine, Request, Spec, TrainState
from hopper.features import PartitionedRows
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.micrograph.route import GlobalBatch
from hopper.migrate.migration import ReplicaBuffers, Transport
from hopper.migrate.schedule import Visit, visits
from hopper.ops import StoredRows


@dataclass(frozen=True)
class NaivePlan(FirstHopsPlan):
    """A rank's part of an iteration, in which model d trains the mini-batch of rank d.

    Attributes
    ----------
    owners: by model, the rank [n], int64, that owns each node of the model's first layer.
    """

    owners: Mapping[int, NDArray[np.int64]]


@dataclass(frozen=True)
class NaiveInputs:
    """The rows and labels that a rank reads.

    Attributes
    ----------
    rows: by model, [n, dim], the rows of its mini-batch's nodes; zero for nodes of other ranks.
    edges: by relation, features of the edges of this rank's own mini-batch.
    labels: of the roots of this rank's own mini-batch.
    """

    rows: dict[int, Tensor]
    edges: dict[Relation, Tensor]
    labels: Tensor


class Naive(Engine[NaivePlan, NaiveInputs]):
    """Models travel around the ring of ranks, each with its mini-batch.

    Model d starts on rank d and visits every other rank, which adds to the first layer what it has
    rows for. Back on rank d the model computes everything else, forward and backward. Then it
    visits the ranks in reverse order, with the gradient of the first layer's rows, and collects
    the gradient of that layer's weights.

    A rank keeps what it computed for a first layer until the model comes back. In the publication
    the model takes it along, which sends more bytes.
    """

    spec = Spec(
        "naive",
        reads_remote_rows=False,
        plans_on_host=True,
        plans_together=True,
        predicts_links=True,
    )

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse models whose first layer cannot be divided."""
        check_first_layer(request, cls.spec.name)

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        graph, cluster = state.rows.graph, state.cluster
        self._target = graph.schema.target_type()
        dim = state.request.reads.inputs[self._target].features
        self._split = split_layer(state.packed.module, range(dim), self.spec.name)
        self._placement = graph.placement(cluster.ranks_per_server)
        self._buffers = ReplicaBuffers(state.packed, moves_parameters=True)
        self._models = Transport(cluster, state.log, "model")
        self._activations = Transport(cluster, state.log, "partial")
        self._visits = visits(there_and_back(cluster.world), cluster.rank)

    def plan(self, batch: GlobalBatch) -> NaivePlan:
        """Draw this rank's mini-batch, and exchange first layers with all ranks."""
        cluster = self.state.cluster
        subgraph, first_hops = draw_first_hops(self.state, batch, range(cluster.world))
        owners = {
            model: self._placement.rank_of(self._target, hop.nodes[self._target])
            for model, hop in first_hops.items()
        }
        owned = [
            hop.nodes[self._target][owners[model] == cluster.rank]
            for model, hop in first_hops.items()
        ]
        reads = {self._target: owned} | subgraph.edge_tables()
        edges = sum(each.num_edges for each in (subgraph, *first_hops.values()))
        return NaivePlan(batch, reads, subgraph, first_hops, owners, num_edges=edges)

    def read(self, plan: NaivePlan, rows: PartitionedRows) -> NaiveInputs:
        """Read this rank's rows for every model, and the labels of its own mini-batch."""
        trainer, rank = self.state.trainer, self.state.cluster.rank
        count = sum(int(ids.size) for ids in plan.reads[self._target])
        with self.state.log.stage("gather", rows=count, operation="own rows"):
            rows_by_model = {
                model: self._own_features(rows, hop.nodes[self._target], plan.owners[model] == rank)
                for model, hop in plan.first_hops.items()
            }
            edges = trainer.read_edge_features(rows, plan.subgraph)
            labels = trainer.read_labels(rows, plan.subgraph.roots, plan.subgraph.pairs)
        return NaiveInputs(rows_by_model, edges, labels)

    def _own_features(
        self, rows: PartitionedRows, ids: NDArray[np.int64], owned: NDArray[np.bool_]
    ) -> Tensor:
        """Return features [n, dim] of distinct nodes; rows are zero where ``owned`` is false."""
        state, trainer = self.state, self.state.trainer
        places = np.flatnonzero(owned)
        rows.rows.local += places.size
        node_type = trainer.reads.inputs[self._target].node_type
        stored = StoredRows.of([rows.local.part(node_type, ids[places], places)], ids.size)
        if not trainer.reads_in_place:
            return stored.to_tensor().to(state.cluster.device).to(trainer.dtype)
        return stored.to(trainer.dtype)

    def compute(self, plan: NaivePlan, inputs: NaiveInputs) -> None:
        """Let every model travel out and back, and compute this rank's part of each."""
        cluster = self.state.cluster
        trips = {
            model: _Trip(self.state, self._split, plan, inputs, model) for model in plan.first_hops
        }
        self._models.travel(
            dict.fromkeys(trips, self._buffers),
            self._visits,
            plan.batch,
            lambda step, model, _: self._visit(step, cluster.world, trips[model]),
            moved=lambda before, now: self._move(plan.batch, before, now, trips),
        )

    def _visit(self, step: int, world: int, trip: _Trip) -> None:
        """Compute what a model needs from this rank at a time step."""
        with self.state.log.stage("compute"):
            if step < world:
                trip.contribute()
            elif step == world:
                trip.turn()
            elif step < 2 * world:
                trip.collect()

    def _move(
        self, batch: GlobalBatch, before: Visit, now: Visit, trips: Mapping[int, _Trip]
    ) -> None:
        """Send on what the previous time step's models carry, and receive what this step's do."""
        if now.step == self._visits[-1].step:
            # The model is home again and carries nothing but gradients.
            return
        leaving = {move: trips[move.model].carried.pack(now.step) for move in before.departures}
        arriving = {move: trips[move.model].carried.room(now.step) for move in now.arrivals}
        moment = batch.epoch, batch.iteration, now.step
        with self._activations.exchanging(moment, leaving, arriving):
            pass
        for move, buffer in arriving.items():
            trips[move.model].carried.unpack(now.step, buffer)


class CarriedActivations:
    """Partial results, or their gradients, that travel with a model, and to which every rank adds.

    On the way out a model goes from home, which is place 0, to places 1, 2, ... and home again, and
    takes along all rows made so far. On the way back it goes to the last place, the one before,
    ... and home again. It then takes along the rows made at places that it has yet to visit, and
    from the last place none.

    Parameters
    ----------
    shapes: by kind, the number of rows and their width.
    made_at: [n] int64, the place at which each row is made. A kind with fewer rows uses the first.
    places: number of places.
    dense: kinds in which every place adds to every row, so that all rows travel.

    Attributes
    ----------
    rows: by kind, [n, width].
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        made_at: NDArray[np.int64],
        places: int,
        dense: Collection[str],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shapes, self._places, self._dense = dict(shapes), places, dense
        self._made_at = made_at
        self._dtype, self._device = dtype, device
        self.rows: dict[str, Tensor] = {}

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add a rank's rows, by kind."""
        self.rows = {
            kind: self.rows[kind] + added if self.rows else added for kind, added in rows.items()
        }

    def pack(self, step: int) -> Tensor:
        """Return the elements that travel to a time step in one dimension, and keep no rows."""
        rows, self.rows = self.rows, {}
        parts = [
            rows[kind] if places is None else rows[kind].index_select(0, places)
            for kind, places in self._find_travelling_rows(step).items()
        ]
        return torch.cat([part.reshape(-1) for part in parts])

    def room(self, step: int) -> Tensor:
        """Return an uninitialised buffer for the elements that travel to a time step."""
        size = 0
        for kind, places in self._find_travelling_rows(step).items():
            count, width = self._shapes[kind]
            size += width * (count if places is None else len(places))
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def unpack(self, step: int, buffer: Tensor) -> None:
        """Set the rows from a received buffer; rows that did not travel become zeros."""
        offset = 0
        for kind, places in self._find_travelling_rows(step).items():
            count, width = self._shapes[kind]
            size = width * (count if places is None else len(places))
            rows = buffer[offset : offset + size].view(-1, width)
            offset += size
            if places is not None:
                rows = rows.new_zeros(count, width).index_copy_(0, places, rows)
            self.rows[kind] = rows

    def _find_travelling_rows(self, step: int) -> dict[str, Tensor | None]:
        """Return, by kind, the indices of the rows that travel to a time step; None = all."""
        if step <= self._places:
            first, stop = 0, step
        else:
            first, stop = 1, 2 * self._places - step + 1
        travelling: dict[str, Tensor | None] = {}
        for kind, (count, _) in self._shapes.items():
            travelling[kind] = None
            if kind not in self._dense:
                made_at = self._made_at[:count]
                places = np.flatnonzero((made_at >= first) & (made_at < stop))
                travelling[kind] = torch.from_numpy(places).to(self._device)
        return travelling


class _Trip:
    """One rank's work for a model that travels through all ranks in an iteration."""

    def __init__(
        self,
        state: TrainState,
        split: SplitLayer,
        plan: NaivePlan,
        inputs: NaiveInputs,
        model: int,
    ) -> None:
        self._state, self._split, self._trainer = state, split, state.trainer
        self._packed, self._device = state.packed, state.cluster.device
        self._plan, self._inputs, self._model = plan, inputs, model
        self._is_own = model == state.cluster.rank
        hop, world = plan.first_hops[model], state.cluster.world
        self._blocks: list[Block] = []
        """the blocks of the mini-batch; only its own rank has them"""
        if self._is_own:
            self._blocks = plan.subgraph.blocks(self._device, inputs.edges)
        own_block = self._blocks[0] if self._blocks else None
        self._block = first_block(hop, own_block, split.layer.edge_dim, self._device)
        self.carried = CarriedActivations(
            self._split.shapes(self._block.num_src, self._block.num_dst),
            # The distance, along the ring, from the model's own rank to the rank of each row.
            (plan.owners[model] - model) % world,
            world,
            self._split.dense,
            self._trainer.dtype,
            self._device,
        )
        self._part: Parts = {}
        """the rows that this rank contributed, with their autograd graph"""

    def contribute(self) -> None:
        """Add to the first layer what this rank's rows contribute."""
        self._split.begin()
        with self._trainer.products():
            self._part = self._split.part(
                self._block, self._inputs.rows[self._model], is_own=self._is_own
            )
        self.carried.add({kind: rows.detach() for kind, rows in self._part.items()})

    def turn(self) -> None:
        """Finish the forward pass, and run the backward pass to the rows of the first layer.

        It runs on the model's own rank, and also collects that rank's part of the gradient.
        """
        plan, trainer = self._plan, self._trainer
        sums = {kind: rows.requires_grad_() for kind, rows in self.carried.rows.items()}
        with trainer.products():
            rows = self._split.logits(self._blocks, sums)
            logits = score_roots(self._state, rows, plan.subgraph)
            loss = trainer.objective.loss_sum(logits, self._inputs.labels) / plan.batch.size
        trainer.backward(self._packed, loss)
        self.carried.rows = {
            kind: torch.zeros_like(rows) if rows.grad is None else rows.grad
            for kind, rows in sums.items()
        }
        self.collect()

    def collect(self) -> None:
        """Add the gradient that this rank's part of the first layer makes."""
        part, self._part = self._part, {}
        kinds = [kind for kind, rows in part.items() if rows.requires_grad]
        torch.autograd.backward(
            [part[kind] for kind in kinds], [self.carried.rows[kind] for kind in kinds]
        )


def there_and_back(ranks: int) -> NDArray[np.int64]:
    """Return where models are that visit all ranks in ascending and then in descending order.

    Each starts and ends at home.

    Returns
    -------
    [N, 2 N + 1] int64: model d is on rank (d + t) mod N up to time step N, and then on rank
    (d - t) mod N.
    """
    home = np.arange(ranks)[:, None]
    there, back = np.arange(ranks + 1), np.arange(1, ranks + 1)
    return np.concatenate([(home + there) % ranks, (home - back) % ranks], axis=1)
