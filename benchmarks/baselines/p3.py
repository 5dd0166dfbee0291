"""P3: the first layer is divided by the columns of features, the other layers by mini-batch.

Gandhi and Iyer, P3: Distributed Deep Graph Learning at Scale, OSDI 2021, as HopGNN compares with it
in section 7.1. Features never travel. Each server sends what its columns contribute to the first
layer of every mini-batch, and receives the gradients of that.
"""

from __future__ import annotations

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
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.micrograph.route import GlobalBatch
from hopper.partials import KindsExchange
from hopper.partition.layout import ByDimension
from hopper.partition.partitioned_graph import PartitionedGraph


@dataclass(frozen=True)
class P3Inputs:
    """The columns and labels that a rank reads.

    Attributes
    ----------
    columns: by rank, [n, columns], this server's columns of the nodes of that rank's mini-batch.
    edges: by relation, features of the edges of this rank's own mini-batch.
    labels: of the roots of this rank's own mini-batch.
    """

    columns: dict[int, Tensor]
    edges: dict[Relation, Tensor]
    labels: Tensor


class P3(Engine[FirstHopsPlan, P3Inputs]):
    """Each rank trains a mini-batch that is drawn at random from all roots.

    All servers compute its first layer, each with the columns that it stores. The rank computes
    the other layers.

    The publication hides messages by training with weights of earlier iterations. Here gradients
    are exact. Only what does not depend on weights is hidden: drawing and reading run ahead, and a
    rank computes its own part of the first layer while the parts of others travel.
    """

    spec = Spec(
        "p3",
        layouts=(ByDimension,),
        reads_remote_rows=False,
        plans_on_host=True,
        plans_together=True,
        predicts_links=True,
    )

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse models whose first layer cannot be divided, and other sources of features."""
        check_first_layer(request, cls.spec.name)
        if request.config.data.features:
            raise RequestError(
                "data.features: p3 reads features that are stored by dimension; expected none"
            )

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        model, graph, cluster = state.packed.module, state.rows.graph, state.cluster
        self._target = graph.schema.target_type()
        columns = graph.layout.columns(self._target, cluster.server)
        self._split = split_layer(model, columns, self.spec.name)
        self.parameter_servers = _servers_by_column(self._split, graph)
        local_rank = cluster.rank % cluster.ranks_per_server
        self._partners = list(range(local_rank, cluster.world, cluster.ranks_per_server))
        """one rank of each server, this one included, which compute parts of each other's first
        layers"""

    def plan(self, batch: GlobalBatch) -> FirstHopsPlan:
        """Draw this rank's mini-batch, and exchange first layers with its partners."""
        subgraph, first_hops = draw_first_hops(self.state, batch, self._partners)
        reads = {self._target: [hop.nodes[self._target] for hop in first_hops.values()]}
        reads |= subgraph.edge_tables()
        edges = sum(each.num_edges for each in (subgraph, *first_hops.values()))
        return FirstHopsPlan(batch, reads, subgraph, first_hops, one_backward=True, num_edges=edges)

    def read(self, plan: FirstHopsPlan, rows: PartitionedRows) -> P3Inputs:
        """Read this server's columns for all partners, and the labels of this mini-batch."""
        trainer = self.state.trainer
        count = sum(int(ids.size) for ids in plan.reads[self._target])
        with self.state.log.stage("gather", rows=count, operation="own columns"):
            columns = {
                rank: trainer.read_features(rows, hop.nodes)[self._target]
                for rank, hop in plan.first_hops.items()
            }
            edges = trainer.read_edge_features(rows, plan.subgraph)
            labels = trainer.read_labels(rows, plan.subgraph.roots, plan.subgraph.pairs)
        return P3Inputs(columns, edges, labels)

    def compute(self, plan: FirstHopsPlan, inputs: P3Inputs) -> None:
        """Compute the first layer with all partners, and the rest of the model alone."""
        state, batch = self.state, plan.batch
        with state.log.stage("compute", roots=plan.subgraph.num_roots):
            blocks = plan.subgraph.blocks(state.cluster.device, inputs.edges)
            with state.trainer.products():
                parts = self._first_layer(plan, inputs, blocks[0])
                rows = self._split.logits(blocks, parts)
                logits = score_roots(state, rows, plan.subgraph)
                loss = state.trainer.objective.loss_sum(logits, inputs.labels) / batch.size
            with state.log.stage("compute", operation="backward"):
                state.trainer.backward(state.packed, loss)

    def _first_layer(self, plan: FirstHopsPlan, inputs: P3Inputs, block: Block) -> Parts:
        """Sum what all columns contribute to this rank's mini-batch.

        The parts of others are computed first, and travel while this rank computes its own.
        """
        cluster, split = self.state.cluster, self._split
        split.begin()
        parts = {
            rank: self._part(rank, plan, inputs, None)
            for rank in self._partners
            if rank != cluster.rank
        }
        kinds = split.shapes(block.num_src, block.num_dst)
        lengths = [
            [len(parts[rank][kind]) if rank in parts else 0 for rank in range(cluster.world)]
            for kind in kinds
        ]
        counts = [
            [count if rank in parts else 0 for rank in range(cluster.world)]
            for count, _ in kinds.values()
        ]
        exchange = None
        if parts:
            exchange = KindsExchange(
                cluster,
                self.state.log,
                {kind: torch.cat([part[kind] for part in parts.values()]) for kind in kinds},
                lengths,
                counts,
                self.state.trainer.dtype,
                f"first layers, {plan.batch.where}",
            )
        own_part = self._part(cluster.rank, plan, inputs, block)
        received = {} if exchange is None else exchange.finish()
        # Parts are added in the order of ranks, so that a run can be repeated bit for bit.
        sums = {}
        for kind in kinds:
            ordered = [
                own_part[kind] if rank == cluster.rank else received[kind][rank]
                for rank in self._partners
            ]
            sums[kind] = sum(ordered[1:], ordered[0])
        return sums

    def _part(
        self, rank: int, plan: FirstHopsPlan, inputs: P3Inputs, own_block: Block | None
    ) -> Parts:
        """Compute what this server's columns contribute to a rank's mini-batch."""
        edge_dim, device = self._split.layer.edge_dim, self.state.cluster.device
        block = first_block(plan.first_hops[rank], own_block, edge_dim, device)
        return self._split.part(block, inputs.columns[rank], is_own=own_block is not None)


def _servers_by_column(split: SplitLayer, graph: PartitionedGraph) -> dict[str, NDArray[np.int64]]:
    """Return the server of each number, by name of a parameter that multiplies columns."""
    target, servers = graph.schema.target_type(), range(graph.book.servers)
    widths = [len(graph.layout.columns(target, server)) for server in servers]
    server_of_column = np.repeat(np.arange(len(servers)), widths)
    layer, servers_of = split.layer, {}
    parameters = dict(layer.named_parameters())
    for name, axis in layer.input_weights().items():
        shape = tuple(parameters[name].shape)
        dims = [-1 if dim == axis else 1 for dim in range(len(shape))]
        servers_of[f"layers.0.{name}"] = np.broadcast_to(server_of_column.reshape(dims), shape)
    return servers_of
