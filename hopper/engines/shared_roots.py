"""The exchange of roots' rows between ranks, where different ranks own the ends of an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.copies import to_device
from hopper.engines.engine import TrainState
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Pairs
from hopper.partials import RowExchange
from hopper.tasks import LinkBatches, pair_scores

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class SharedRoots:
    """The rows of roots that a rank computes and sends, and the pairs that it scores.

    Attributes
    ----------
    versions: by type, [n] int64, ascending: the roots that this rank owns.
    going: [m] int64: the indices of the rows to send, those for rank 0 first.
    lengths: the number of rows that each rank receives from this one.
    counts: the number of rows that this rank receives from each rank.
    pairs: the pairs of the edges whose home is this rank. Their indices refer to received rows.
    """

    versions: Mapping[str, Ids]
    going: Ids
    lengths: list[int]
    counts: list[int]
    pairs: Pairs

    def score(
        self,
        state: TrainState,
        finish: Callable[[Tensor], Tensor],
        rows: Mapping[str, Tensor],
        where: str,
    ) -> Tensor:
        """Exchange the rows of roots, and return the scores of this rank's edges.

        Every rank must call it, and every rank must run its backward pass.

        Parameters
        ----------
        finish: the model's head.
        rows: by type, [n, width] of the roots that this rank owns, in the order of ``versions``.
        """
        owned = torch.cat([finish(rows[name]) for name in self.versions])
        sent = owned.index_select(0, to_device(self.going, owned.device))
        ends = RowExchange(
            *(state.cluster, state.log, sent, self.lengths, self.counts),
            f"exchanging rows of links' ends, {where}",
        ).finish()
        return pair_scores(state.packed.module, ends, self.pairs)


def pairs_by_rank(links: LinkBatches, batch: GlobalBatch, world: int) -> list[Pairs]:
    """Return the pairs of a batch's edges, by the rank that is their home."""
    moment = batch.epoch, batch.iteration
    return [links.pairs(batch.of_home(rank), *moment) for rank in range(world)]


def find_roots(pairs: Sequence[Pairs]) -> dict[str, Ids]:
    """Return all ends of the pairs of all ranks: by type, versions [n], int64, ascending."""
    return {
        name: np.unique(np.concatenate([of_rank.versions[name] for of_rank in pairs]))
        for name in pairs[0].versions
    }


def share_roots(
    pairs: Sequence[Pairs], owner_of: Callable[[str, Ids], Ids], rank: int
) -> SharedRoots:
    """Decide which rows of roots a rank computes, sends and receives.

    Draws do not depend on the rank, so every rank knows what all others read, without messages.
    ``owner_of`` returns the ranks [n], int64, that compute the rows of some versions of a type.
    """
    owners = [[owner_of(name, ids) for name, ids in reader.versions.items()] for reader in pairs]
    # By reading rank and type, the roots that this rank owns.
    asked = [
        {
            name: roots[owner == rank]
            for (name, roots), owner in zip(reader.versions.items(), by_type, strict=True)
        }
        for reader, by_type in zip(pairs, owners, strict=True)
    ]
    owned = {name: np.unique(np.concatenate([roots[name] for roots in asked])) for name in asked[0]}
    firsts = np.cumsum([0, *(roots.size for roots in owned.values())])
    going = [
        np.searchsorted(owned[name], asked_by_rank[name]) + first
        for asked_by_rank in asked
        for name, first in zip(owned, firsts.tolist(), strict=False)
    ]
    come_from = np.concatenate(owners[rank])
    order = np.empty(come_from.size, np.int64)
    order[np.argsort(come_from, kind="stable")] = np.arange(come_from.size)
    rank_pairs = pairs[rank]
    return SharedRoots(
        versions=owned,
        going=np.concatenate([np.empty(0, np.int64), *going]),
        lengths=[sum(roots.size for roots in asked_by_rank.values()) for asked_by_rank in asked],
        counts=np.bincount(come_from, minlength=len(pairs)).tolist(),
        pairs=replace(rank_pairs, heads=order[rank_pairs.heads], tails=order[rank_pairs.tails]),
    )
