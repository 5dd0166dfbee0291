"""A rank's part of a prediction: of nodes, or of edges from the rows of both ends."""

from __future__ import annotations

import copy
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.inference import FileRows, Inference, Pace, Wanted
from hopper.predict.description import finish_description
from hopper.predict.order import Order, read_order
from hopper.predict.parts import LABEL_NAME, Columns, Part, part_file, write_part
from hopper.predict.task_columns import TaskColumns, columns_of
from hopper.predict.trained import TrainedRun
from hopper.tasks import EdgeDecoder, LinkTable, edge_decoder_of
from hopper.tasks.target_edges import TargetEdges
from hopper.train.console import RunConsole
from hopper.train.owned_rows import OwnedRows, blocks_of, judge, part_of

_NODES_A_BLOCK: Final = 1 << 14
"""of a rank, where nodes can be computed in any number at a time"""
_EDGES_A_BLOCK: Final = 1 << 17
"""of all ranks"""


@dataclass(frozen=True)
class PredictionTask(ABC):
    """What a rank predicts and writes."""

    order: Order
    out: Path
    trained: TrainedRun
    inference: Inference
    model: torch.nn.Module

    @property
    def _cluster(self) -> Cluster:
        return self.inference.scene.cluster

    @abstractmethod
    def run(self) -> int:
        """Predict block after block, but those that all ranks have already; returns how many nodes
        or edges there are, over all ranks."""

    def conclude(self, count: int) -> None:
        """Say that all parts are there; every rank has written its own.

        Parameters
        ----------
        count: of nodes or edges, over all ranks.
        """
        cluster, names = self._cluster, self._label_names
        shutil.rmtree(self._space, ignore_errors=True)
        if cluster.rank == 0:
            finish_description(self.out, self.order, count, names, self._task_columns)
        cluster.arrive("describing the prediction")
        # On another machine, unless the folder is shared.
        if int(os.environ.get("LOCAL_RANK", 0)) == 0 and not read_order(self.out)[1]["finished"]:
            finish_description(self.out, self.order, count, names, self._task_columns)

    @property
    def _task_columns(self) -> list[TaskColumns]:
        labels = self.trained.schema.target_labels
        if labels is None or self.order.what == "embeddings":
            return []
        graph, names = self.inference.graph, self.trained.label_names
        return columns_of(labels, self.order.what, lambda task: names(graph, task))

    @cached_property
    def _label_names(self) -> list[str]:
        if self.order.what == "labels" and self.trained.target.kind == "class":
            return self.trained.label_names(self.inference.graph)
        return []

    def _finished(self, rows: Tensor) -> NDArray[Any]:
        labels = self.trained.schema.target_labels
        return self.order.finish(rows, self.trained.target.kind, labels)

    def _named(self, columns: Columns) -> Columns:
        """The same, and the names of classes where they have some."""
        names = self._label_names
        if names:
            columns[LABEL_NAME] = (str, lambda _, values: [names[each] for each in values.tolist()])
        return columns

    def _missing(self, blocks: int) -> list[int]:
        """The blocks that not all ranks have."""
        there = torch.tensor([int(self._file(number).exists()) for number in range(blocks)])
        self._cluster.all_reduce(there, "control", "finding the blocks to do")
        return [number for number in range(blocks) if int(there[number]) < self._cluster.world]

    def _tell(self, table: str, done: int, pieces: int) -> None:
        if pieces > 1 and self._cluster.rank == 0:
            print(f"{table}: {done} of {pieces} pieces", flush=True)

    @cached_property
    def _console(self) -> RunConsole:
        return RunConsole(self._cluster.rank == 0, "")

    def _file(self, number: int) -> Path:
        return part_file(self.out, self._cluster.rank, number, self.order.format)

    @property
    def _space(self) -> Path:
        run_dir = Path(self.inference.scene.request.config.train.run_dir)
        return run_dir / f"rank-{self._cluster.rank}"


class NodeTask(PredictionTask):
    """Predictions of nodes, or their rows."""

    def run(self) -> int:
        """See :class:`PredictionTask`."""
        ids = self.order.node_ids(self.inference.graph)
        size = _NODES_A_BLOCK * self._cluster.world
        if not self.inference.takes_any_number(self.model):
            size = max(1, ids.size)
        blocks = [ids[first : first + size] for first in range(0, max(1, ids.size), size)]
        for number in self._missing(len(blocks)):
            self._predict(number, blocks[number])
            told = f"block {number + 1} of {len(blocks)}: {blocks[number].size:,} nodes"
            self._console.say(told)
        return ids.size

    def _predict(self, number: int, block: NDArray[np.int64]) -> None:
        pace = Pace(self._cluster, f"computing block {number}")
        space = FileRows(self._space / str(number), pace, self._tell)
        output, node_type = self.order.output(self.trained.target.predicted), self.order.node_type
        wanted = Wanted(f"block {number}", block, output, node_type)
        ids, rows = self.inference.rows(self.model, wanted, space)
        graph = self.inference.graph
        part = Part.of(graph.original_ids(node_type)[ids])

        def pieces() -> Iterator[tuple[slice, NDArray[Any]]]:
            for piece, places in part.pieces():
                yield piece, self._finished(_picked(rows, places))
                pace.go_on()

        columns: Columns = {}
        names = graph.names(node_type)
        if names is not None:
            columns["name"] = (str, lambda piece, _: names.of(part.ids[piece]))
        sample = self._finished(rows[:0].cpu())
        write_part(
            *(self._file(number), part, self.order.what, pieces(), sample), self._named(columns)
        )
        pace.await_others()
        # Not before all ranks have their parts: one that has none would want these rows.
        shutil.rmtree(self._space / str(number), ignore_errors=True)


class EdgeTask(PredictionTask):
    """Predictions of edges: rows of all ends are computed once, by their owners, and handed to all
    ranks block by block; each judges its part of a block."""

    def run(self) -> int:
        """See :class:`PredictionTask`."""
        blocks, count = self._blocks(), self._table.ids.size
        missing = self._missing(len(blocks))
        if not missing:
            return count
        owned = self._compute_ends()
        decoder = copy.deepcopy(edge_decoder_of(self.model)).cpu()
        for number in missing:
            self._predict(number, blocks[number], owned, decoder)
            told = f"block {number + 1} of {len(blocks)}: {blocks[number].size:,} edges"
            self._console.say(told)
        return count

    @cached_property
    def _table(self) -> LinkTable:
        graph, placement = self.inference.graph, self.inference.placement
        return self.order.edges(graph, TargetEdges(graph, self._cluster, placement))

    @cached_property
    def _versions(self) -> LinkTable:
        """The same edges, with versions of their ends."""
        return self._table.in_versions(self.inference.versions_at)

    def _blocks(self) -> list[NDArray[np.int64]]:
        """Places in the table; one block without any, where there are no edges."""
        return blocks_of(self._table, _EDGES_A_BLOCK) or [np.empty(0, np.int64)]

    def _compute_ends(self) -> dict[str, OwnedRows]:
        """By type, this rank's rows of the ends of all edges."""
        found, pace = {}, Pace(self._cluster, "computing rows of edges' ends")
        for node_type in self.inference.graph.schema.root_types:
            space = FileRows(self._space / node_type, pace, self._tell)
            ids = np.unique(self._versions.ends(node_type))
            wanted = Wanted(f"ends of type {node_type}", ids, node_type=node_type)
            own, rows = self.inference.rows(self.model, wanted, space)
            found[node_type] = OwnedRows(own, rows.cpu())
        return found

    def _predict(
        self,
        number: int,
        block: NDArray[np.int64],
        owned: Mapping[str, OwnedRows],
        decoder: EdgeDecoder,
    ) -> None:
        table, cluster = self._table, self._cluster
        relation = table.targets[int(table.relations[block[0]]) if block.size else 0]
        told = f"handing round rows of block {number}"
        rows = judge(decoder, self._versions, block, owned, cluster, told)
        own = block[part_of(cluster, block.size)]
        part, graph = Part.of(table.ids[own]), self.inference.graph
        src = graph.original_ids(relation.src)[table.src[own]]
        dst = graph.original_ids(relation.dst)[table.dst[own]]
        columns: Columns = {
            "src": (int, lambda piece, _: src[piece]),
            "dst": (int, lambda piece, _: dst[piece]),
        }
        if len(table.targets) > 1:
            name = str(relation)
            columns["relation"] = (str, lambda _, values: [name] * len(values))
        pieces = ((piece, self._finished(rows[piece])) for piece, _ in part.pieces())
        sample = self._finished(rows[:0])
        write_part(
            *(self._file(number), part, self.order.what, pieces, sample), self._named(columns)
        )


def _picked(rows: Tensor, places: NDArray[np.int64]) -> Tensor:
    """[n, width], in host memory: some rows."""
    return rows[torch.from_numpy(places).to(rows.device)].cpu()
