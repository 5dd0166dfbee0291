"""Rows computed from each node's full neighbourhood.

This serves modules with only a ``forward()``, and draws in time, in which a node's neighbours
depend on the root.
"""

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
    """Computes every node, or version, from its full k-hop neighbourhood.

    A pass has up to :data:`ROOTS_PER_PASS` nodes, and fewer if it would read too many rows.
    """

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[NDArray[np.int64], Tensor]:
        """Compute this rank's share of logits in memory; see :meth:`Inference.rows`."""
        check_output(model, wanted.output, by_relation=False)
        if wanted.output != "logits":
            kind = self.scene.request.config.sampler.kind
            raise RequestError(
                f"embeddings: with sampler.kind = {kind!r} a node has other rows for other roots; "
                "expected to predict logits"
            )
        target, rank = wanted.node_type or self.target, self._cluster.rank
        nodes = wanted.ids
        if self._are_versions:
            nodes = self._sampler.nodes_of(target, wanted.ids)
        mine = wanted.ids[self.placement.rank_of(target, nodes) == rank]
        outputs = [torch.empty((0, self._width_of(model)), dtype=self._dtype)]
        todo = [
            mine[start : start + ROOTS_PER_PASS] for start in range(0, mine.size, ROOTS_PER_PASS)
        ]
        if self._reads.tables:
            # Ranks read learnable rows together, but make different numbers of passes. So the rows
            # of all passes are read at once.
            reads = self._sample(self._sampler, {target: mine}).nodes
            self._read_learned({name: [ids] for name, ids in reads.items()})
        while todo:
            chunk = todo.pop(0)
            subgraph = self._sample(self._sampler, {target: chunk})
            reads = {name: ids for name, ids in subgraph.nodes.items() if ids.size}
            if sum(ids.size for ids in reads.values()) > ROWS_PER_PASS and chunk.size > 1:
                todo = [*np.array_split(chunk, 2), *todo]
                continue
            inputs = {name: self._inputs(name, ids) for name, ids in reads.items()}
            logits = run_root_rows(model, self._blocks(subgraph), inputs, [target])
            outputs.append(logits.cpu())
        return mine, torch.cat(outputs)
