"""The exchange of roots' rows between ranks, where different ranks own the ends of an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hopper.device.copies import to_device
from hopper.engines.engine import TrainState
from hopper.graph.topology import Ids
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Pairs
from hopper.partials import RowExchange
from hopper.tasks import LinkBatches, pair_scores


@dataclass(frozen=True)
class SharedRoots:
    """The rows of roots that a rank computes and sends, and the pairs that it scores."""

    versions: Mapping[str, Ids]
    """by type, [n] int64, ascending: the roots that this rank owns"""
    going: Ids
    """[m] int64: the indices of the rows to send, those for rank 0 first"""
    lengths: list[int]
    counts: list[int]
    """the number of rows that each rank receives from this one, and this one from each rank"""
    pairs: Pairs
    """the pairs of the edges whose home is this rank; their indices refer to received rows"""

    def score(
        self,
        state: TrainState,
        finish: Callable[[Tensor], Tensor],
        rows: Mapping[str, Tensor],
        where: str,
    ) -> Tensor:
        """Exchange the rows of roots, and return the scores of this rank's edges.

        Every rank must call it, and run its backward pass. ``finish`` is the model's head, which
        reads the ``rows`` by type, [n, width], of the roots that this rank owns.
        """
        owned = torch.cat([finish(rows[name]) for name in self.versions])
        sent = owned.index_select(0, to_device(self.going, owned.device))
        ends = RowExchange(
            state.cluster,
            state.log,
            sent,
            self.lengths,
            self.counts,
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
    firsts = np.cumsum([0, *(roots.size for roots in owned.values())]).tolist()
    going = [
        np.searchsorted(owned[name], roots[name]) + first
        for roots in asked
        for name, first in zip(owned, firsts, strict=False)
    ]
    come_from = np.concatenate(owners[rank])
    # The inverse of the order in which rows come: that of their owners.
    order = np.argsort(np.argsort(come_from, kind="stable"))
    own = pairs[rank]
    return SharedRoots(
        versions=owned,
        going=np.concatenate([np.empty(0, np.int64), *going]),
        lengths=[sum(roots.size for roots in by_type.values()) for by_type in asked],
        counts=np.bincount(come_from, minlength=len(pairs)).tolist(),
        pairs=replace(own, heads=order[own.heads], tails=order[own.tails]),
    )
