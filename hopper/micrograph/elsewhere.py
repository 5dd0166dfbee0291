"""Draws from in-edges of which each server stores those of its own nodes.

Other servers draw for their nodes while the rank draws for the nodes whose in-edges are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.client.calls import RemoteDraw
from cache_server.draws.neighbor_lists import NOTHING
from cache_server.draws.spec import Drawn, ExcludedEdges, SamplingSpec
from hopper.cluster.traffic import Traffic
from hopper.features import RemoteRows
from hopper.graph.schema import Relation
from hopper.partition.placement import PartitionBook

Ids = NDArray[np.int64]


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


@dataclass(frozen=True)
class SplitDraw:
    """A draw's destinations, split by the server that draws for them."""

    here: Ids
    """indices of the destinations that the rank draws for"""
    others: Mapping[int, Ids]
    """by server, indices of the destinations that it draws for"""
    draws: Mapping[int, RemoteDraw]
    """by server, the draw that it was asked to make"""

    def order(self) -> Ids:
        """Return [n] int64: each destination's index in ``here`` followed by all of ``others``."""
        split = np.concatenate([self.here, *self.others.values()])
        index_in_split = np.empty(split.size, np.int64)
        index_in_split[split] = np.arange(split.size)
        return index_in_split


class DrawsElsewhere:
    """Draws from in-edges that are divided over servers, which draw what the rank itself would
    (docs/inside/draws.md); ``traffic`` counts bytes."""

    def __init__(self, remote: RemoteRows, book: PartitionBook, traffic: Traffic) -> None:
        self._remote, self._book, self.traffic = remote, book, traffic

    def begin(self, asked: Mapping[Relation, AskedDraw]) -> Draws:
        """Ask other servers for their part of a hop's draws, each with one request."""
        splits = {relation: self._split(draw) for relation, draw in asked.items()}
        by_server: dict[int, list[RemoteDraw]] = {}
        for split in splits.values():
            for server, draw in split.draws.items():
                by_server.setdefault(server, []).append(draw)
        return Draws(splits, self._remote.begin_sampling(by_server, self.traffic))

    def _split(self, asked: AskedDraw) -> SplitDraw:
        stored, spec, nodes, is_here, until, excluded = asked
        here = np.flatnonzero(is_here)
        if here.size == nodes.size:
            return SplitDraw(here, {}, {})
        elsewhere = np.flatnonzero(~is_here)
        homes = self._book.home(stored.dst, nodes[elsewhere])
        others = {int(server): elsewhere[homes == server] for server in np.unique(homes)}
        draws = {
            server: RemoteDraw(
                str(stored),
                spec,
                nodes[indices],
                self._book.total(stored.src),
                None if until is None else until[indices],
                excluded.src,
                excluded.dst,
            )
            for server, indices in others.items()
        }
        return SplitDraw(here, others, draws)


class Draws:
    """The running draws of one hop, for whose answers ``wait`` waits."""

    def __init__(self, splits: Mapping[Relation, SplitDraw], wait: Callable[[], None]) -> None:
        self._splits, self._wait = splits, wait

    def here(self, relation: Relation, destinations: Ids) -> Ids:
        """Return the destinations of a relation that the rank draws for."""
        split = self._splits[relation]
        return destinations[split.here] if split.others else destinations

    def stitch(self, relation: Relation, here: Drawn) -> Drawn:
        """Join what the rank and the servers drew for a relation, in the order of destinations;
        ServerLost, DeadlineExceeded or ClusterError of a server that did not answer."""
        split = self._splits[relation]
        self._wait()
        if not split.others:
            return here
        parts = [here, *(split.draws[server].neighbors() for server in split.others)]
        order = split.order()
        counts = np.concatenate([np.diff(offsets) for offsets, _, _ in parts])
        firsts, counts = (np.cumsum(counts) - counts)[order], counts[order]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        edges = np.repeat(firsts - offsets[:-1], counts) + np.arange(offsets[-1])
        sources, positions = (np.concatenate([part[i] for part in parts])[edges] for i in (1, 2))
        return offsets, sources, positions

    def in_degrees(self, relation: Relation, here: Ids) -> Ids:
        """Return [n] int64: how many in-edges of each destination are there at its time, given
        those of the destinations here; errors as of :meth:`stitch`."""
        split = self._splits[relation]
        self._wait()
        parts = [here, *(split.draws[server].in_degrees() for server in split.others)]
        return np.concatenate(parts)[split.order()]
