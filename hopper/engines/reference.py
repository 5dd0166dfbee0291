"""The gradient of a single process, which every exact engine must compute.

It makes one pass over all roots of a global batch. There are no groups, other ranks or network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.config import Config
from hopper.engines.assemble import make_model, make_runner, make_schedule
from hopper.engines.request import Request
from hopper.errors import GraphError, RequestError
from hopper.features import LocalRows, RowKind
from hopper.hetero.learnable import IDS, PREFIX, Leaf, LeafRows, distinct_by_table
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.flat_model import FlatModel
from hopper.ops import RowPart, StoredRows
from hopper.partition import PartitionedGraph
from hopper.timing.run_log import RunLog


class EveryServersRows:
    """A feature source over the files of all servers, for a process that sees them all."""

    def __init__(self, graph: PartitionedGraph) -> None:
        self._graph = graph
        self._servers = [LocalRows(graph, server) for server in range(graph.book.servers)]

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Read rows of nodes of a type from the files of all servers."""
        graph, servers = self._graph, self._servers
        if kind == "features" and not graph.layout.has_whole_rows(node_type):
            return np.concatenate([server.gather(kind, node_type, ids) for server in servers], 1)
        stored = [graph.stored(node_type, server) for server in range(len(servers))]
        most = max(range(len(stored)), key=lambda server: stored[server].count)
        dim, dtype = servers[most].row_format(kind, node_type)
        out = np.empty((ids.size, dim), dtype)
        # Where relations are divided, several servers may store a row; the first one is read.
        missing = np.arange(ids.size)
        for server, rows in zip(servers, stored, strict=True):
            is_here = rows.contains(ids[missing])
            if is_here.any():
                out[missing[is_here]] = server.gather(kind, node_type, ids[missing[is_here]])
            missing = missing[~is_here]
        if missing.size:
            raise GraphError(f"{kind}/{node_type}: no server stores node {ids[missing[0]]}")
        return out

    def stored(self, node_type: str, ids: NDArray[np.int64]) -> StoredRows:
        """Read features of nodes of a type as rows in their stored form."""
        rows = torch.from_numpy(self.gather("features", node_type, ids))
        return StoredRows.of([RowPart(rows)], ids.size)


class Reference:
    """Computes the gradient of any iteration of a run on ``world`` ranks, for any values of its
    parameters. The folders of all servers must be readable."""

    def __init__(
        self,
        config: Config,
        graph: PartitionedGraph,
        world: int,
        device: torch.device | None = None,
    ) -> None:
        self.dtype, self._device = config.train.dtype, device or torch.device("cpu")
        self._rows = EveryServersRows(graph)
        # The reference never rounds on purpose, even if the run does. It draws in host memory.
        train = config.train.model_copy(update={"autocast": "off"})
        sampler = config.sampler.model_copy(update={"device": "cpu"})
        request = Request(config.model_copy(update={"train": train, "sampler": sampler}), graph)
        self._reads = request.reads
        self._packed = FlatModel(make_model(request).to(self._device).train())
        self.schedule = make_schedule(request, world)
        # One pass takes the global batch, so the result does not depend on any grouping.
        one_pass = max(1, self.schedule.batch_size)
        self._trainer = make_runner(request, RunLog(None), one_pass, self._device)

    def gradient(
        self, epoch: int, iteration: int, parameters: Mapping[str, Tensor], order: int = 0
    ) -> tuple[float, dict[str, Tensor]]:
        """Compute the loss of a global batch, and copies on the CPU of all gradients, by name.

        Parameters
        ----------
        parameters: the values of all parameters of the model, and of the learnable rows that the
            iteration reads, under the names of recorded parameters.
        order: number of the order in which roots, and neighbours of a node, are summed. All orders
            compute the same up to rounding.
        """
        packed, trainer = self._packed, self._trainer
        batch = self.schedule.batch(epoch, iteration)
        self._set({n: v for n, v in parameters.items() if not n.startswith(PREFIX)})
        packed.clear()
        subgraphs = self._sample(batch.roots, epoch, iteration, order)
        leaves = self._leaves(parameters, subgraphs)
        trainer.learned = LeafRows(leaves, self._reads.tables)
        for subgraph in subgraphs:
            trainer.train(packed, trainer.read(subgraph, self._rows), batch.size)
        gradients = {name: g.cpu().clone() for name, g in packed.named_gradients().items()}
        for table, leaf in leaves.items():
            if leaf.learns:
                gradients[f"{PREFIX}{table}"] = leaf.gradient.cpu()
        return float(packed.loss), gradients

    def _sample(
        self, roots: NDArray[np.int64], epoch: int, iteration: int, order: int
    ) -> list[Subgraph]:
        """Sample all roots in one pass, or for another order in two, with shuffled neighbours."""
        if order == 0:
            return self._trainer.sample(roots, epoch, iteration)
        generator = np.random.default_rng(order)
        halves = np.array_split(generator.permutation(roots), 2)
        subgraphs = [self._trainer.sample_once(half, epoch, iteration) for half in halves]
        if any(getattr(part, "reads_order", False) for part in self._packed.module.modules()):
            return subgraphs
        return [subgraph.shuffled(generator) for subgraph in subgraphs]

    def _leaves(
        self, parameters: Mapping[str, Tensor], subgraphs: Sequence[Subgraph]
    ) -> dict[str, Leaf]:
        """Return the learnable rows of an iteration, by table."""
        leaves, tables = {}, self._reads.tables
        nodes = {name: [subgraph.nodes[name] for subgraph in subgraphs] for name in tables}
        for table, wanted in distinct_by_table(nodes, tables).items():
            key = f"{PREFIX}{table}"
            if key not in parameters or f"{key}{IDS}" not in parameters:
                raise RequestError(f"parameters: expected {key} and {key}{IDS} too")
            ids = parameters[f"{key}{IDS}"].cpu().numpy()
            if not np.array_equal(ids, wanted):
                raise RequestError(
                    f"{key}: expected the {wanted.size} rows that the iteration reads, given "
                    f"{ids.size}, others among them"
                )
            rows = parameters[key].to(self._device)
            leaves[table] = Leaf(ids, rows, learns=table not in self._reads.frozen)
        return leaves

    @torch.no_grad()
    def _set(self, parameters: Mapping[str, Tensor]) -> None:
        named = dict(self._packed.module.named_parameters())
        expected, given = (
            {name: list(value.shape) for name, value in side.items()}
            for side in (named, parameters)
        )
        if expected != given:
            raise RequestError(f"parameters of another model: expected {expected}, given {given}")
        for name, value in parameters.items():
            named[name].copy_(value)
