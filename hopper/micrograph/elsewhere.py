"""Draws from in-edges of which each server stores those of its own nodes.

Other servers draw for their nodes while the rank draws for the nodes whose in-edges are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.client.calls import RemoteDraw
from cache_server.draws.neighbor_lists import NOTHING
from cache_server.draws.spec import Drawn, ExcludedEdges, SamplingSpec
from hopper.cluster.traffic import Traffic
from hopper.features import RemoteRows
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.partition.placement import PartitionBook


class AskedDraw(NamedTuple):
    """A hop's draw in one relation."""

    stored: Relation
    spec: SamplingSpec
    nodes: Ids
    """[n] global ids of destinations"""
    is_here: NDArray[np.bool_]
    """[n] whether the rank's server stores each one's in-edges"""
    until: Ids | None = None
    """[n] times of their roots, for draws in time"""
    excluded: ExcludedEdges = NOTHING


class DrawsElsewhere:
    """Draws from in-edges that are divided over servers, which draw what the rank itself would
    (docs/inside/draws.md); ``traffic`` counts bytes."""

    def __init__(self, remote: RemoteRows, book: PartitionBook, traffic: Traffic) -> None:
        self._remote, self._book, self.traffic = remote, book, traffic

    def begin(
        self, asked: Mapping[Relation, AskedDraw]
    ) -> tuple[dict[Relation, SplitDraw], Callable[[], None]]:
        """Ask other servers for their part of a hop's draws, each with one request.

        Returns the draws, and what waits for the answers; it raises ServerLost, DeadlineExceeded or
        ClusterError of a server that did not answer.
        """
        draws = {relation: self._split(draw) for relation, draw in asked.items()}
        by_server: dict[int, list[RemoteDraw]] = {}
        for draw in draws.values():
            for server, (_, remote_draw) in draw.others.items():
                by_server.setdefault(server, []).append(remote_draw)
        return draws, self._remote.begin_sampling(by_server, self.traffic)

    def _split(self, asked: AskedDraw) -> SplitDraw:
        stored, spec, nodes, is_here, until, excluded = asked
        here, elsewhere = np.flatnonzero(is_here), np.flatnonzero(~is_here)
        homes, others = self._book.home(stored.dst, nodes[elsewhere]), {}
        for server in np.unique(homes).tolist():
            indices = elsewhere[homes == server]
            others[server] = (
                indices,
                RemoteDraw(
                    str(stored),
                    spec,
                    nodes[indices],
                    self._book.total(stored.src),
                    None if until is None else until[indices],
                    excluded.src,
                    excluded.dst,
                ),
            )
        return SplitDraw(here, others)


class SplitDraw(NamedTuple):
    """A draw in one relation, whose destinations are split by the server that draws."""

    indices_here: Ids
    """indices of the destinations that the rank draws for"""
    others: Mapping[int, tuple[Ids, RemoteDraw]]
    """by server, indices of the destinations that it draws for, and what it was asked"""

    def pick_here(self, of_destinations: Ids) -> Ids:
        """Return the values of those destinations that the rank draws for."""
        return of_destinations[self.indices_here] if self.others else of_destinations

    def stitch(self, here: Drawn) -> Drawn:
        """Join what the rank and the servers drew, in the order of destinations; the answers must
        be there."""
        if not self.others:
            return here
        parts = [here, *(draw.neighbors() for _, draw in self.others.values())]
        order = self._order()
        counts = np.concatenate([np.diff(offsets) for offsets, _, _ in parts])
        firsts, counts = (np.cumsum(counts) - counts)[order], counts[order]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        edges = np.repeat(firsts - offsets[:-1], counts) + np.arange(offsets[-1])
        sources, positions = (np.concatenate([part[i] for part in parts])[edges] for i in (1, 2))
        return offsets, sources, positions

    def in_degrees(self, here: Ids) -> Ids:
        """Return [n] int64: how many in-edges of each destination are there at its time, given
        those of the destinations here; the answers must be there."""
        parts = [here, *(draw.in_degrees() for _, draw in self.others.values())]
        return np.concatenate(parts)[self._order()]

    def _order(self) -> Ids:
        """Return [n] int64: each destination's index among those here followed by all others."""
        split = np.concatenate([self.indices_here, *(at for at, _ in self.others.values())])
        index_in_split = np.empty(split.size, np.int64)
        index_in_split[split] = np.arange(split.size)
        return index_in_split
