"""Descriptions of tables of learnable rows: their nodes, their first rows, and their training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from cache_server.draws.counter import LEARNABLE, key_of, mix, variate
from cache_server.kernel import kernel

_UNIT: Final = 1.0 / 9007199254740992.0

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LearnableTable:
    """A table with a learnable row for every node of a type, which may have features as well."""

    name: str
    """the type's name, unless places have tables of their own"""
    node_type: str
    """the type's name in the graph"""
    offsets: Ids
    """[servers + 1]: server s has the rows from ``offsets[s]`` to ``offsets[s + 1]``"""
    read_as: tuple[str, ...]
    """the names of the type, in subgraphs, that read this table"""
    initial: Path | None = None
    """a file of the first rows, [count, dim] by original id; None = random rows"""
    frozen: bool = False
    """whether training leaves the rows as they are"""
    deviation: float = 0.0
    """the standard deviation of random rows; 0 = one over the root of their width"""

    def first_rows(self, seed: int, original_ids: Ids, dim: int) -> NDArray[np.float64]:
        """Return the rows [n, dim], float64, with which training begins."""
        if self.initial is None:
            return first_rows(seed, self.name, original_ids, dim, self.deviation)
        initial = np.load(self.initial, mmap_mode="r", allow_pickle=False)
        rows: NDArray[np.float64] = initial[original_ids].astype(np.float64)
        return rows


@dataclass(frozen=True)
class Learning:
    """The way in which the rows of a run's tables are learned."""

    dim: int
    """the width of a row"""
    dtype: torch.dtype
    seed: int
    """of random rows, which also depend on the table's name and on original ids"""
    optimizer: str
    """a name in :data:`hopper.hetero.sparse_optimizers.OPTIMIZERS`"""
    learning_rate: float
    l2: float = 0.0
    """the factor of the row that an update adds to its gradient"""
    keeps: bool = False
    """whether :meth:`TableShare.keep` will be called"""


def first_rows(
    seed: int, table: str, original_ids: Ids, dim: int, deviation: float = 0.0
) -> NDArray[np.float64]:
    """Return random rows [n, dim], float64, uniform, that depend on the arguments alone, and whose
    standard deviation is given; 0 = one over the root of ``dim``."""
    out = np.empty((original_ids.size, dim), np.float64)
    _fill(np.uint64(key_of(LEARNABLE, seed, *table.encode())), original_ids, out)
    return out * (3.0**0.5 * deviation if deviation else (3.0 / dim) ** 0.5)


@kernel
def _fill(key: np.uint64, ids: Ids, out: NDArray[np.float64]) -> None:
    for i in range(ids.size):
        row = mix(key ^ mix(np.uint64(ids[i])))
        for j in range(out.shape[1]):
            unit = np.float64(variate(row, np.uint64(j)) >> np.uint64(11)) * _UNIT
            out[i, j] = 2.0 * unit - 1.0
