"""Scores of labelled edges, from the rows of both ends.

The owners of nodes compute their rows over whole neighbourhoods. Block by block, every rank then
receives the rows of the edges' ends and predicts its part of the block.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.inference import Inference, Wanted
from hopper.models import Objective
from hopper.tasks import LinkTable, edge_decoder_of
from hopper.train.evaluate import Evaluator
from hopper.train.owned_rows import OwnedRows, blocks_of, judge, part_of

_BLOCK_BYTES: Final = 64 << 20
"""Bytes of the rows of a block of edges."""

Ids = NDArray[np.int64]


class EdgeEvaluator(Evaluator):
    """Scores a model on the labels of a split's edges, on all ranks together."""

    baseline_text = "what one answer for all edges reaches"

    def __init__(self, inference: Inference, objective: Objective) -> None:
        super().__init__(inference, objective)
        self._graph = inference.graph
        self._table = cache(self._read_table)

    def _read_table(self, split: str) -> LinkTable:
        """Return a split's edges, with versions of their ends."""
        table = LinkTable.of(self._graph, self._graph.links(split))
        return table.in_versions(self._inference.versions_at)

    def _predict(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of this rank's part of the split's edges; every rank must call
        it."""
        table, cluster = self._table(split), self._scene.cluster
        types = self._graph.schema.root_types
        owned = {node_type: self._compute_rows(model, node_type, split) for node_type in types}
        # A copy, so that the model's own parameters stay on their device.
        decoder = copy.deepcopy(edge_decoder_of(model)).cpu()
        logits = [torch.empty(0, self._classes, dtype=self._scene.dtype)]
        for block in self._blocks(table):
            where = f"judging edges of {split}"
            logits.append(judge(decoder, table, block, owned, cluster, where))
        return torch.cat(logits), self._split_labels(split)

    def _split_labels(self, split: str) -> Tensor:
        """Return labels of this rank's part of the split's edges."""
        table = self._table(split)
        cluster = self._scene.cluster
        places = [block[part_of(cluster, block.size)] for block in self._blocks(table)]
        own_places = np.concatenate([np.empty(0, np.int64), *places])
        stored = np.asarray(table.label_rows)[own_places]
        return self.objective.shape_labels(torch.from_numpy(stored))

    def _compute_rows(self, model: torch.nn.Module, node_type: str, split: str) -> OwnedRows:
        """Compute this rank's rows of the edges' ends of a type; every rank must call it."""
        wanted = np.unique(self._table(split).ends(node_type))
        ids, rows = self._inference.rows(model, Wanted(split, wanted, node_type=node_type))
        return OwnedRows(ids, rows.cpu())

    def _blocks(self, table: LinkTable) -> list[Ids]:
        row_bytes = self._scene.dtype.itemsize * self._scene.classes
        return blocks_of(table, max(1, _BLOCK_BYTES // (2 * row_bytes)))
