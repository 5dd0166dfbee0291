"""Kernels of draws in proportion to edges' weights, and of draws with replacement.

Each thread writes its own rows only, so results depend neither on the number of threads nor on
their timing. Specified in docs/inside/draws.md.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.alias_table import LONGEST
from cache_server.draw import absorb, below, variate
from cache_server.hop_draw import Drawn
from cache_server.kernel import kernel
from cache_server.neighbour_draw import lacks
from cache_server.prefetch import prefetch
from cache_server.weighted_list import TICKETS, Ids, Table, draw_by_search, draw_by_table

NODES_A_TURN: Final = 64
"""nodes that one thread draws for with the same buffers"""
_AHEAD: Final = 4
"""how many lists ahead of its draws a table is prefetched"""
_LINE: Final = 16
"""columns of a table in a cache line"""
_PREFETCHED: Final = 256
"""most columns of a list that are prefetched"""


@kernel
def _fetch_table(table: Table, first: np.int64, degree: np.int64) -> None:
    """Prefetch the columns of a list."""
    last = first + min(degree, np.int64(_PREFETCHED)) - 1
    for column in range(first, last, _LINE):
        prefetch(table, column)
    prefetch(table, last)


@kernel(parallel=True)
def _lists(
    indptr: Ids, original_ids: Ids, frontier: Ids, key: np.uint64
) -> tuple[Ids, Ids, NDArray[np.uint64]]:
    """Return [n] int64 starts and lengths of the nodes' lists, and [n] uint64 keys."""
    size = frontier.size
    firsts, degrees = np.empty(size, np.int64), np.empty(size, np.int64)
    keys = np.empty(size, np.uint64)
    for i in numba.prange(size):
        node = frontier[i]
        firsts[i] = indptr[node]
        degrees[i] = indptr[node + 1] - firsts[i]
        keys[i] = absorb(key, np.uint64(original_ids[node]))
    return firsts, degrees, keys


@kernel(parallel=True)
def _left(degrees: Ids, frontier: Ids, nodes: Ids, bounds: Ids) -> Ids:
    """Return [n] int64: how many positions of each node's list may be drawn."""
    left = degrees.copy()
    if nodes.size:
        for i in numba.prange(frontier.size):
            begin, end = lacks(frontier[i], nodes, bounds)
            left[i] -= end - begin
    return left


@kernel
def _all_but(degree: np.int64, lacking: Ids, out: Ids, start: np.int64) -> None:
    """Write all positions of a list that may be drawn, in ascending order."""
    at, skipped = start, np.int64(0)
    for place in range(degree):
        if skipped < lacking.size and lacking[skipped] == place:
            skipped += 1
            continue
        out[at] = place
        at += 1


@kernel
def _offsets(lefts: Ids, fanout: int, replace: bool) -> Ids:
    """Return [n + 1] int64: where the drawn edges of each node begin.

    Parameters
    ----------
    lefts: [n] int64, how many positions of each node's list may be drawn.
    """
    offsets = np.zeros(lefts.size + 1, np.int64)
    for i in range(lefts.size):
        count = fanout if replace and lefts[i] else min(lefts[i], fanout)
        offsets[i + 1] = offsets[i] + count
    return offsets


@kernel(parallel=True)
def _replace_by_sources(edges: Ids, indices: Ids) -> None:
    """Replace the indices of edges by their sources.

    The loop does nothing else, as in ``draw_hop``, so that many loads run at once.
    """
    for j in numba.prange(edges.size):
        edges[j] = indices[edges[j]]


@kernel(parallel=True)
def draw_by_weight(
    indptr: Ids,
    indices: Ids,
    sums: Ids,
    table: Table,
    original_ids: Ids,
    frontier: Ids,
    fanout: int,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
    replace: bool,
) -> Drawn:
    """Draw neighbours of a frontier, each in proportion to its weight among the remaining ones.

    Parameters not listed are those of :func:`cache_server.neighbour_draw.draw_hop`.

    Parameters
    ----------
    sums, table: [edges] int64 and uint32, running sums of weights and alias tables of the neighbour
        lists (docs/inside/draws.md).
    fanout: positive.
    nodes, bounds, places: edges that may not be drawn, as of
        :func:`cache_server.neighbour_draw.draw_hop_without`.
    replace: whether draws are with replacement. A list then gives ``fanout`` edges, or none.
    """
    size = frontier.size
    firsts, degrees, keys = _lists(indptr, original_ids, frontier, key)
    lefts = _left(degrees, frontier, nodes, bounds)
    offsets = _offsets(lefts, fanout, replace)
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    ends = offsets[:size].copy()
    # This loop draws from most lists and does little else; the next one draws what is missing.
    for turn in numba.prange((size + NODES_A_TURN - 1) // NODES_A_TURN):
        tickets = np.empty(TICKETS, np.uint32)
        for i in range(turn * NODES_A_TURN, min(size, (turn + 1) * NODES_A_TURN)):
            # Lists are far apart in memory, so the next ones are prefetched during each draw.
            ahead = min(i + _AHEAD, size - 1)
            if degrees[ahead] > fanout:
                _fetch_table(table, firsts[ahead], degrees[ahead])
            start, stop, first, degree = offsets[i], offsets[i + 1], firsts[i], degrees[i]
            if lefts[i] < degree or degree > LONGEST:
                continue
            if degree == stop - start and not replace:
                for j in range(start, stop):
                    positions[j] = j - start
                ends[i] = stop
            elif degree:
                ends[i] = draw_by_table(
                    keys[i], sums, table, first, degree, replace, tickets, positions, start, stop
                )
    for i in numba.prange(size):
        start, stop, first, degree = offsets[i], offsets[i + 1], firsts[i], degrees[i]
        if ends[i] < stop:
            begin, end = lacks(frontier[i], nodes, bounds)
            lacking = places[begin:end]
            if lefts[i] == stop - start and not replace:
                _all_but(degree, lacking, positions, start)
            else:
                draw_by_search(
                    keys[i], sums, first, degree, lacking, replace, positions, start, ends[i], stop
                )
        for j in range(start, stop):
            sources[j] = first + positions[j]
    _replace_by_sources(sources, indices)
    return offsets, sources, positions


@kernel(parallel=True)
def draw_with_replacement(
    indptr: Ids,
    indices: Ids,
    original_ids: Ids,
    frontier: Ids,
    fanout: int,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> Drawn:
    """Draw ``fanout`` neighbours of every destination that has any, uniformly with replacement.

    Parameters are those of :func:`draw_by_weight`.
    """
    size = frontier.size
    firsts, degrees, keys = _lists(indptr, original_ids, frontier, key)
    lefts = _left(degrees, frontier, nodes, bounds)
    offsets = _offsets(lefts, fanout, True)
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        begin, end = lacks(frontier[i], nodes, bounds)
        left, start = np.uint64(lefts[i]), offsets[i]
        for j in range(start, offsets[i + 1]):
            place = np.int64(below(variate(keys[i], np.uint64(j - start)), left))
            for k in range(begin, end):
                # Convert a place among the remaining edges to one in the whole list.
                place += place >= places[k]
            positions[j] = place
            sources[j] = firsts[i] + place
    _replace_by_sources(sources, indices)
    return offsets, sources, positions
