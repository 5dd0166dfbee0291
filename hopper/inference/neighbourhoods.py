"""Rows from whole neighbourhoods: for modules with only a ``forward()``, and where a node has other
neighbours for other roots."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.errors import RequestError
from hopper.inference.inference import (
    ROOTS_PER_PASS,
    ROWS_PER_PASS,
    Inference,
    Wanted,
    check_output,
)
from hopper.inference.row_space import RowSpace
from hopper.models.run import run_root_rows


class Neighbourhoods(Inference):
    """Computes every node from its full k-hop neighbourhood, some nodes a pass; fewer where these
    would be too many rows. Where edges are predicted, versions of their ends."""

    def takes_any_number(self, model: torch.nn.Module) -> bool:
        """See :class:`Inference`."""
        return True

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Inference`; logits alone, in memory."""
        check_output(model, wanted.output, by_relation=False)
        if wanted.output != "logits":
            kind = self.scene.request.config.sampler.kind
            raise RequestError(
                f"embeddings: with sampler.kind = {kind!r} a node has other rows for other roots; "
                "expected to predict logits"
            )
        target, rank = wanted.node_type or self.target, self._cluster.rank
        nodes_of = wanted.ids
        if self._are_versions:
            nodes_of = self._sampler.nodes_of(target, wanted.ids)
        mine = wanted.ids[self.placement.rank_of(target, nodes_of) == rank]
        outputs = [torch.empty((0, self._width_of(model)), dtype=self._dtype)]
        todo = [
            mine[start : start + ROOTS_PER_PASS] for start in range(0, mine.size, ROOTS_PER_PASS)
        ]
        if self._reads.tables:
            # Of all passes: ranks make different numbers of them, and read these rows together.
            nodes = self._sample(self._sampler, {target: mine}).nodes
            self._read_learned({name: [ids] for name, ids in nodes.items()})
        while todo:
            chunk = todo.pop(0)
            subgraph = self._sample(self._sampler, {target: chunk})
            nodes = {name: ids for name, ids in subgraph.nodes.items() if ids.size}
            if sum(ids.size for ids in nodes.values()) > ROWS_PER_PASS and chunk.size > 1:
                todo = [*np.array_split(chunk, 2), *todo]
                continue
            inputs = {name: self._inputs(name, ids) for name, ids in nodes.items()}
            made = run_root_rows(model, self._blocks(subgraph), inputs, [target])
            outputs.append(made.cpu())
        return mine, torch.cat(outputs)
