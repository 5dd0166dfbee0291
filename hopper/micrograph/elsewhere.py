"""In-edges that lie on other servers alone: their servers draw among them, and the rank among those
that are here meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.hop_draw import Drawn, HopDraw
from cache_server.kernel import kernel
from cache_server.left_out import LeftOut
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
    is_here: [n] bool, whose in-edges the rank's server stores.
    until: [n] int64, the times of their roots, in draws in time.
    left_out: edges that may not be drawn.
    """

    stored: Relation
    how: HopDraw
    nodes: Ids
    is_here: NDArray[np.bool_]
    until: Ids | None = None
    left_out: LeftOut | None = None


@dataclass(frozen=True)
class SplitDraw:
    """Where the in-edges of a draw's destinations lie.

    Attributes
    ----------
    here: [k] int64, those whose in-edges the rank's own server stores.
    others: by server, which of the others are its. draws: by server, what it was asked.
    """

    here: Ids
    others: Mapping[int, Ids]
    draws: Mapping[int, NeighbourDraw]

    def order(self) -> Ids:
        """[n] int64: where each destination stands among those here and, server by server, the
        others."""
        places = np.concatenate([self.here, *self.others.values()])
        found = np.empty(places.size, np.int64)
        found[places] = np.arange(places.size)
        return found


class DrawsElsewhere:
    """Draws among in-edges of which servers store some: each of its own nodes all.

    Parameters
    ----------
    remote: asks other servers; they draw what the rank would (docs/draws.md).
    traffic: where bytes are counted until they are taken.
    """

    def __init__(self, remote: RemoteRows, book: PartitionBook, traffic: Traffic) -> None:
        self._remote, self._book, self._traffic = remote, book, traffic

    def take_sent(self) -> dict[Cause, int]:
        """The bytes by cause since the last call."""
        return self._traffic.take()

    def begin(self, asked: Mapping[Relation, AskedDraw]) -> Draws:
        """Ask other servers to draw for those of a hop's destinations whose in-edges are not here:
        each server once for all relations."""
        splits = {relation: self._split(draw) for relation, draw in asked.items()}
        by_server: dict[int, list[NeighbourDraw]] = {}
        for split in splits.values():
            for server, draw in split.draws.items():
                by_server.setdefault(server, []).append(draw)
        return Draws(splits, self._remote.begin_sampling(by_server, self._traffic))

    def _split(self, asked: AskedDraw) -> SplitDraw:
        stored, how, nodes, is_here, until, left_out = asked
        here = np.flatnonzero(is_here)
        if here.size == nodes.size:
            return SplitDraw(here, {}, {})
        away = np.flatnonzero(~is_here)
        homes = self._book.home(stored.dst, nodes[away])
        others = {int(server): away[homes == server] for server in np.unique(homes)}
        ends = () if left_out is None else (left_out.src, left_out.dst)
        draws = {
            server: NeighbourDraw(
                str(stored),
                how,
                nodes[places],
                self._book.total(stored.src),
                None if until is None else until[places],
                *ends,
            )
            for server, places in others.items()
        }
        return SplitDraw(here, others, draws)


class Draws:
    """The draws of one hop under way.

    Parameters
    ----------
    wait: waits for the answers of other servers.
    """

    def __init__(self, splits: Mapping[Relation, SplitDraw], wait: Callable[[], None]) -> None:
        self._splits, self._wait = splits, wait

    def here(self, relation: Relation, destinations: Ids) -> Ids:
        """Those of a relation's destinations that the rank draws for."""
        split = self._splits[relation]
        return destinations[split.here] if split.others else destinations

    def stitch(self, relation: Relation, here: Drawn) -> Drawn:
        """What was drawn for all destinations of a relation, in their order.

        Parameters
        ----------
        here: what the rank drew.

        Raises
        ------
        ServerLost, DeadlineExceeded, ClusterError: a server did not answer; names it.
        """
        split = self._splits[relation]
        self._wait()
        if not split.others:
            return here
        parts = [here, *(split.draws[server].drawn() for server in split.others)]
        order = split.order()
        counts = np.concatenate([np.diff(offsets) for offsets, _, _ in parts])
        sources, positions = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        return _reorder(counts, sources, positions, order)

    def in_degrees(self, relation: Relation, here: Ids) -> Ids:
        """[n] int64: of all destinations of a relation that is drawn in time, how many in-edges are
        there at their times; parameters and errors as of :meth:`stitch`."""
        split = self._splits[relation]
        self._wait()
        told = [here, *(split.draws[server].in_degrees() for server in split.others)]
        return np.concatenate(told)[split.order()]


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
