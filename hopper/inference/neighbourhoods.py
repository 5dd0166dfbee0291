"""Rows from whole neighbourhoods, for modules with only a ``forward()``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.inference.inference import (
    ROOTS_PER_PASS,
    ROWS_PER_PASS,
    Inference,
    Scene,
    Wanted,
    check_output,
)
from hopper.inference.row_space import RowSpace
from hopper.micrograph.sample import NeighborSampler
from hopper.models import run_model


class Neighbourhoods(Inference):
    """Computes every node from its full k-hop neighbourhood, some nodes a pass; fewer where these
    would be too many rows. For graphs of one node type.

    Parameters
    ----------
    sampler: which takes all neighbours that the model reads.
    """

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        super().__init__(scene)
        self._sampler = sampler

    def takes_any_number(self, model: torch.nn.Module) -> bool:
        """See :class:`Inference`."""
        return True

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Inference`; logits alone, in memory."""
        check_output(model, wanted.output, by_relation=False)
        target, rank = self.target, self._cluster.rank
        mine = self._placement.deal(target, wanted.ids).of(rank)
        outputs = [torch.empty((0, self._classes), dtype=self._dtype)]
        todo = [
            mine[start : start + ROOTS_PER_PASS] for start in range(0, mine.size, ROOTS_PER_PASS)
        ]
        if self._reads.tables:
            # Of all passes: ranks make different numbers of them, and read these rows together.
            self._read_learned({target: [self._sampler.sample(mine, 0, 0).nodes[target]]})
        while todo:
            chunk = todo.pop(0)
            subgraph = self._sampler.sample(chunk, 0, 0)
            nodes = subgraph.nodes[target]
            if nodes.size > ROWS_PER_PASS and chunk.size > 1:
                todo = [*np.array_split(chunk, 2), *todo]
                continue
            blocks = self._blocks(subgraph)
            outputs.append(run_model(model, blocks, {target: self._inputs(target, nodes)}).cpu())
        return mine, torch.cat(outputs)
