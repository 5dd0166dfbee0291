"""Rows of roots that ranks hand each other, where the ends of a link have different owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.device_copies import to_device
from hopper.micrograph.pairs import Pairs
from hopper.micrograph.route import GlobalBatch
from hopper.partials import RowExchange
from hopper.run_log import RunLog
from hopper.tasks import LinkBatches

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class SharedRoots:
    """What a rank computes of roots, hands out, and scores.

    Attributes
    ----------
    versions: by type, [n] int64, ascending: the roots that this rank owns.
    going: [m] int64: which of their rows go out, those for rank 0 first.
    lengths: rows for every rank. counts: rows from every rank.
    pairs: of the links whose home is this rank; their places are those of the rows that come.
    """

    versions: Mapping[str, Ids]
    going: Ids
    lengths: list[int]
    counts: list[int]
    pairs: Pairs

    def exchange(self, cluster: Cluster, log: RunLog, rows: Tensor, where: str) -> Tensor:
        """[k, width]: the rows of the roots that this rank's pairs are made of; collective, and the
        gradients' way back is too.

        Parameters
        ----------
        rows: [n, width], of the roots that this rank owns, in the order of ``versions``.
        where: names the moment in errors.
        """
        sent = rows.index_select(0, to_device(self.going, rows.device))
        operation = f"exchanging rows of links' ends, {where}"
        return RowExchange(cluster, log, sent, self.lengths, self.counts, operation).finish()


def pairs_by_rank(links: LinkBatches, batch: GlobalBatch, world: int) -> list[Pairs]:
    """By rank, the pairs of the links of a batch whose home it is."""
    moment = batch.epoch, batch.iteration
    return [links.pairs(batch.of_home(rank), *moment) for rank in range(world)]


def roots_of_pairs(pairs: Sequence[Pairs]) -> dict[str, Ids]:
    """By type, [n] int64 versions, ascending: all ends of the pairs of all ranks."""
    return {
        name: np.unique(np.concatenate([own.versions[name] for own in pairs]))
        for name in pairs[0].versions
    }


def share_roots(
    pairs: Sequence[Pairs], owner_of: Callable[[str, Ids], Ids], rank: int
) -> SharedRoots:
    """A rank's part of the roots of a batch. Every rank finds what all others read, since draws
    depend on nobody: nothing is told.

    Parameters
    ----------
    pairs: by rank, as of :func:`pairs_by_rank`.
    owner_of: [n] int64, who computes the rows of some roots, of their type and versions.
    """
    owners = [[owner_of(name, ids) for name, ids in own.versions.items()] for own in pairs]
    # Of every rank's roots, those that this one owns, by type.
    asked = [
        {
            name: roots[part == rank]
            for (name, roots), part in zip(own.versions.items(), by, strict=True)
        }
        for own, by in zip(pairs, owners, strict=True)
    ]
    owned = {name: np.unique(np.concatenate([own[name] for own in asked])) for name in asked[0]}
    firsts = np.cumsum([0, *(roots.size for roots in owned.values())])
    places = [
        np.searchsorted(owned[name], own[name]) + first
        for own in asked
        for name, first in zip(owned, firsts.tolist(), strict=False)
    ]
    come_from = np.concatenate(owners[rank])
    order = np.empty(come_from.size, np.int64)
    order[np.argsort(come_from, kind="stable")] = np.arange(come_from.size)
    mine = pairs[rank]
    return SharedRoots(
        versions=owned,
        going=np.concatenate([np.empty(0, np.int64), *places]),
        lengths=[sum(roots.size for roots in own.values()) for own in asked],
        counts=np.bincount(come_from, minlength=len(pairs)).tolist(),
        pairs=replace(mine, heads=order[mine.heads], tails=order[mine.tails]),
    )
