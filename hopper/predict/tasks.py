"""A rank's work in a prediction: of nodes, or of edges from the rows of both ends."""

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

from hopper.cluster.cluster import Cluster
from hopper.inference import (
    EndRows,
    Inference,
    KeepAlive,
    RowSpace,
    Wanted,
    blocks_of,
    parts_of,
    score_block,
)
from hopper.predict.description import finish_description
from hopper.predict.order import Order, read_order
from hopper.predict.parts import LABEL_NAME, Columns, Part, part_file, write_part
from hopper.predict.task_columns import TaskColumns, columns_of
from hopper.predict.trained import TrainedRun
from hopper.tasks import EdgeDecoder, LinkTable, edge_decoder_of
from hopper.tasks.target_edges import TargetEdges
from hopper.train.console import RunConsole

_NODES_A_BLOCK: Final = 1 << 14
"""nodes of each rank in a block, if nodes can be computed in blocks"""
_EDGES_A_BLOCK: Final = 1 << 17
"""edges of all ranks together in a block"""


@dataclass(frozen=True)
class PredictionTask(ABC):
    """A rank's work in a prediction, block after block."""

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
        """Predict all blocks that not every rank has written yet.

        Returns
        -------
        The number of nodes or edges over all ranks.
        """

    def conclude(self, count: int) -> None:
        """Write that the prediction is finished. Every rank must call this after :meth:`run`.

        Parameters
        ----------
        count: number of nodes or edges over all ranks.
        """
        cluster, names = self._cluster, self._label_names
        shutil.rmtree(self._space, ignore_errors=True)
        if cluster.rank == 0:
            finish_description(self.out, self.order, count, names, self._task_columns)
        cluster.arrive("describing the prediction")
        # Other machines need their own description, unless the folder is shared.
        if int(os.environ.get("LOCAL_RANK", 0)) == 0 and not read_order(self.out)[1]["finished"]:
            finish_description(self.out, self.order, count, names, self._task_columns)

    @property
    def _task_columns(self) -> list[TaskColumns]:
        labels = self.trained.schema.target_labels
        if labels is None or self.order.what == "embeddings":
            return []
        return columns_of(labels, self.order.what, self.trained.label_names)

    @cached_property
    def _label_names(self) -> list[str]:
        if self.order.what == "labels" and self.trained.target.kind == "class":
            return self.trained.label_names()
        return []

    def _finish(self, rows: Tensor) -> NDArray[Any]:
        labels = self.trained.schema.target_labels
        return self.order.finish(rows, self.trained.target.kind, labels)

    def _with_label_names(self, columns: Columns) -> Columns:
        """Add a column of class names to ``columns`` if classes have names."""
        names = self._label_names
        if names:
            columns[LABEL_NAME] = (str, lambda _, values: [names[i] for i in values.tolist()])
        return columns

    def _missing_blocks(self, blocks: int) -> list[int]:
        """Return the numbers of the blocks that not all ranks have written; collective."""
        written = torch.tensor([int(self._file(number).exists()) for number in range(blocks)])
        self._cluster.all_reduce(written, "control", "finding the blocks to do")
        return [number for number in range(blocks) if int(written[number]) < self._cluster.world]

    def _print_progress(self, table: str, done: int, pieces: int) -> None:
        if pieces > 1 and self._cluster.rank == 0:
            print(f"{table}: {done} of {pieces} pieces", flush=True)

    @cached_property
    def _console(self) -> RunConsole:
        return RunConsole(self._cluster.rank == 0)

    def _file(self, number: int) -> Path:
        return part_file(self.out, self._cluster.rank, number, self.order.format)

    @property
    def _space(self) -> Path:
        run_dir = Path(self.inference.scene.request.config.train.run_dir)
        return run_dir / f"rank-{self._cluster.rank}"


class NodeTask(PredictionTask):
    """Predictions or embeddings of nodes."""

    def run(self) -> int:
        """Predict blocks of nodes; see :meth:`PredictionTask.run`."""
        ids = self.order.node_ids(self.inference.graph)
        size = _NODES_A_BLOCK * self._cluster.world
        if self.inference.shares_work(self.model):
            size = max(1, ids.size)
        blocks = [ids[first : first + size] for first in range(0, max(1, ids.size), size)]
        for number in self._missing_blocks(len(blocks)):
            self._predict(number, blocks[number])
            size_text = f"{blocks[number].size:,} nodes"
            self._console.say(f"block {number + 1} of {len(blocks)}: {size_text}")
        return ids.size

    def _predict(self, number: int, block: NDArray[np.int64]) -> None:
        keep_alive = KeepAlive(self._cluster, f"computing block {number}")
        space = RowSpace(self._space / str(number), keep_alive, self._print_progress)
        output, node_type = self.order.output(self.trained.target.predicted), self.order.node_type
        wanted = Wanted(f"block {number}", block, output, node_type)
        ids, rows = self.inference.rows(self.model, wanted, space)
        graph = self.inference.graph
        part = Part.of(graph.original_ids(node_type)[ids])

        def pieces() -> Iterator[tuple[slice, NDArray[Any]]]:
            for piece, places in part.pieces():
                yield piece, self._finish(_pick_rows(rows, places))
                keep_alive.go_on()

        columns: Columns = {}
        names = graph.names(node_type)
        if names is not None:
            columns["name"] = (str, lambda piece, _: names.of(part.ids[piece]))
        sample = self._finish(rows[:0].cpu())
        write_part(
            *(self._file(number), part, self.order.what, pieces(), sample),
            self._with_label_names(columns),
        )
        keep_alive.await_others()
        # A rank that is interrupted before its part is complete needs these rows again.
        shutil.rmtree(self._space / str(number), ignore_errors=True)


class EdgeTask(PredictionTask):
    """Predictions of edges.

    The rows of all ends are computed once, by the ranks that own them. Then, block by block, each
    rank receives the rows that it needs, and predicts its part of the block.
    """

    def run(self) -> int:
        """Predict blocks of edges; see :meth:`PredictionTask.run`."""
        blocks, count = self._blocks(), self._table.ids.size
        missing = self._missing_blocks(len(blocks))
        if not missing:
            return count
        ends = self._compute_ends()
        decoder = copy.deepcopy(edge_decoder_of(self.model)).cpu()
        for number in missing:
            self._predict(number, blocks[number], ends, decoder)
            size_text = f"{blocks[number].size:,} edges"
            self._console.say(f"block {number + 1} of {len(blocks)}: {size_text}")
        return count

    @cached_property
    def _table(self) -> LinkTable:
        graph, placement = self.inference.graph, self.inference.placement
        return self.order.edges(graph, TargetEdges(graph, self._cluster, placement))

    @cached_property
    def _versions(self) -> LinkTable:
        """The edges of ``_table``, with versions of their ends."""
        return self._table.in_versions(self.inference.versions_at)

    def _blocks(self) -> list[NDArray[np.int64]]:
        """Return blocks of indices in the table; one empty block if there are no edges."""
        return blocks_of(self._table, _EDGES_A_BLOCK) or [np.empty(0, np.int64)]

    def _compute_ends(self) -> dict[str, EndRows]:
        """Compute, by node type, the rows of the ends of all edges."""
        rows, keep_alive = {}, KeepAlive(self._cluster, "computing rows of edges' ends")
        for node_type in self.inference.graph.schema.root_types:
            space = RowSpace(self._space / node_type, keep_alive, self._print_progress)
            ids = np.unique(self._versions.ends(node_type))
            wanted = Wanted(f"ends of type {node_type}", ids, node_type=node_type)
            rows[node_type] = self.inference.ends(self.model, wanted, space)
        return rows

    def _predict(
        self,
        number: int,
        block: NDArray[np.int64],
        ends: Mapping[str, EndRows],
        decoder: EdgeDecoder,
    ) -> None:
        table, cluster = self._table, self._cluster
        relation = table.targets[int(table.relations[block[0]]) if block.size else 0]
        operation = f"handing round rows of block {number}"
        rows = score_block(decoder, self._versions, block, ends, cluster, operation)
        rank_ids = parts_of(block, cluster)[cluster.rank]
        part, graph = Part.of(table.ids[rank_ids]), self.inference.graph
        src = graph.original_ids(relation.src)[table.src[rank_ids]]
        dst = graph.original_ids(relation.dst)[table.dst[rank_ids]]
        columns: Columns = {
            "src": (int, lambda piece, _: src[piece]),
            "dst": (int, lambda piece, _: dst[piece]),
        }
        if len(table.targets) > 1:
            name = str(relation)
            columns["relation"] = (str, lambda _, values: [name] * len(values))
        pieces = ((piece, self._finish(rows[piece])) for piece, _ in part.pieces())
        sample = self._finish(rows[:0])
        write_part(
            *(self._file(number), part, self.order.what, pieces, sample),
            self._with_label_names(columns),
        )


def _pick_rows(rows: Tensor, places: NDArray[np.int64]) -> Tensor:
    """Copy the rows at ``places`` to host memory: [n, width]."""
    return rows[torch.from_numpy(places).to(rows.device)].cpu()
