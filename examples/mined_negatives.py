"""Hard negatives that were found before training, of which every iteration takes others.

    [task]
    negatives = "mined_negatives:MinedNegatives"
    negatives_options = {file = "/data/hard.npy"}

The file has candidates for each node that may be replaced: [nodes, m] original ids, for instance
those whose embeddings of an earlier run lie nearest.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class MinedNegatives:
    """Draws from the candidates of the end that a negative replaces."""

    def __init__(self, *, counts: Mapping[str, int], seed: int, file: str) -> None:
        self._candidates = np.load(file, mmap_mode="r", allow_pickle=False)
        self._seed = seed
        if self._candidates.ndim != 2 or len(self._candidates) not in counts.values():
            raise ValueError(f"{file}: expected [nodes, m] ids, got {self._candidates.shape}")

    def draw(self, heads, tails, relation, side, count, epoch, iteration):  # type: ignore
        """Return other candidates in every iteration: [n, count] original ids."""
        drawn = np.empty((heads.size, count), np.int64)
        for link, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            # The key has no other link in it, so engines and ranks draw the same.
            keys = [self._seed, epoch, iteration, int(head), int(tail), side == "tail"]
            columns = np.random.default_rng(keys).integers(self._candidates.shape[1], size=count)
            drawn[link] = self._candidates[tail if side == "tail" else head][columns]
        return drawn
