"""In-edges that lie on other servers: their servers draw among them, while own ones are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.hop_draw import Drawn, HopDraw
from cache_server.kernel import kernel
from cache_server.sampling import NeighbourDraw
from hopper.features import RemoteRows
from hopper.graph.schema import Relation
from hopper.partition.book import PartitionBook
from hopper.traffic import Cause, Traffic

Ids = NDArray[np.int64]


class AskedDraw(NamedTuple):
    """A hop's draw of one relation.

    Attributes
    ----------
    stored: the relation as it is stored. nodes: [n] int64 global ids of destinations.
    """

    stored: Relation
    how: HopDraw
    nodes: Ids


@dataclass(frozen=True)
class SplitDraw:
    """Where the destinations of a draw lie.

    Attributes
    ----------
    own: [k] int64, which of them are the rank's own server's.
    others: by server, which of them are its. draws: by server, what it was asked.
    """

    own: Ids
    others: Mapping[int, Ids]
    draws: Mapping[int, NeighbourDraw]


class DrawsElsewhere:
    """Draws among in-edges that servers have of their own nodes alone.

    Parameters
    ----------
    remote: asks other servers; they draw what the rank would (docs/draws.md).
    server: the rank's own.
    traffic: where bytes are counted until they are taken.
    """

    def __init__(
        self, remote: RemoteRows, book: PartitionBook, server: int, traffic: Traffic
    ) -> None:
        self._remote, self._book, self._server = remote, book, server
        self._traffic = traffic

    def take_sent(self) -> dict[Cause, int]:
        """The bytes by cause since the last call."""
        return self._traffic.take()

    def begin(self, asked: Mapping[Relation, AskedDraw]) -> Draws:
        """Ask other servers to draw for those of a hop's destinations that are theirs: each server
        once for all relations."""
        splits = {relation: self._split(draw) for relation, draw in asked.items()}
        by_server: dict[int, list[NeighbourDraw]] = {}
        for split in splits.values():
            for server, draw in split.draws.items():
                by_server.setdefault(server, []).append(draw)
        return Draws(splits, self._remote.begin_sampling(by_server, self._traffic))

    def _split(self, asked: AskedDraw) -> SplitDraw:
        stored, how, nodes = asked
        homes = self._book.home(stored.dst, nodes)
        own = np.flatnonzero(homes == self._server)
        if own.size == nodes.size:
            return SplitDraw(own, {}, {})
        sources = self._book.total(stored.src)
        others = {
            int(server): np.flatnonzero(homes == server)
            for server in np.unique(homes)
            if server != self._server
        }
        draws = {
            server: NeighbourDraw(str(stored), how, nodes[places], sources)
            for server, places in others.items()
        }
        return SplitDraw(own, others, draws)


class Draws:
    """The draws of one hop under way.

    Parameters
    ----------
    wait: waits for the answers of other servers.
    """

    def __init__(self, splits: Mapping[Relation, SplitDraw], wait: Callable[[], None]) -> None:
        self._splits, self._wait = splits, wait

    def own(self, relation: Relation, destinations: Ids) -> Ids:
        """Those of a relation's destinations that the rank draws for."""
        split = self._splits[relation]
        return destinations[split.own] if split.others else destinations

    def stitch(self, relation: Relation, own: Drawn) -> Drawn:
        """What was drawn for all destinations of a relation, in their order.

        Parameters
        ----------
        own: what the rank drew.

        Raises
        ------
        ServerLost, DeadlineExceeded, ClusterError: a server did not answer; names it.
        """
        split = self._splits[relation]
        self._wait()
        if not split.others:
            return own
        places = [split.own, *split.others.values()]
        parts = [own, *(split.draws[server].drawn() for server in split.others)]
        order = np.empty(sum(each.size for each in places), np.int64)
        order[np.concatenate(places)] = np.arange(order.size)
        counts = np.concatenate([np.diff(offsets) for offsets, _, _ in parts])
        sources, positions = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        return _reorder(counts, sources, positions, order)


@kernel
def _reorder(counts: Ids, sources: Ids, positions: Ids, order: Ids) -> Drawn:
    """Lists in another order.

    Parameters
    ----------
    counts: [n] int64, lengths of the lists. order: [n] int64, the list that comes at each place.
    """
    firsts = np.empty(counts.size, np.int64)
    total = np.int64(0)
    for i in range(counts.size):
        firsts[i] = total
        total += counts[i]
    offsets = np.empty(order.size + 1, np.int64)
    offsets[0] = 0
    new_sources, new_positions = np.empty_like(sources), np.empty_like(positions)
    at = np.int64(0)
    for i in range(order.size):
        first = firsts[order[i]]
        for j in range(first, first + counts[order[i]]):
            new_sources[at] = sources[j]
            new_positions[at] = positions[j]
            at += 1
        offsets[i + 1] = at
    return offsets, new_sources, new_positions
