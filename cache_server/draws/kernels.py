"""The kernels that draw in-edges, for ranks and servers alike. Specified in docs/inside/draws.md.

Each thread writes its own entries only, and sums are of integers, so results depend neither on the
number of threads nor on their timing. A pass has one kind of random access and nothing that depends
on it, so that many loads run at once: profiled, that takes a third of the time of a single pass.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import absorb, below, draw_positions, node_key, variate
from cache_server.draws.spec import DrawKey, Drawn, ExcludedEdges
from cache_server.kernel import kernel

Ids = NDArray[np.int64]
Sums = NDArray[np.int32]
Keys = NDArray[np.uint64]

UNIFORM, LATEST, REPLACEMENT, WEIGHTED, WEIGHTED_REPLACEMENT = range(5)
"""the ways to draw from a list"""
_TURN: Final = 64
"""nodes that a thread draws for with one buffer"""
_SHORT: Final = 128
"""most edges of a list that is searched from the beginning"""
_ENDLESS: Final = (1 << 31) - 1
_SEARCHES: Final = 1 << 32
"""counter of the first variate of a search; larger than any attempt's"""


class ListArrays(NamedTuple):
    """The arrays of ``NeighborLists`` in neighbor_lists.py; missing ones are empty."""

    indptr: Ids
    indices: Ids
    cumulative_weights: Sums
    times: Ids
    by_time: Ids


@kernel(parallel=True)
def keys_of_rows(key: DrawKey, originals: NDArray[np.integer[Any]], rows: Ids) -> Keys:
    """Return [n] uint64: the keys of the nodes with some rows, whose original ids are given for all
    rows, of four or eight bytes."""
    now, later, dependence, elapsed = key
    keys = np.empty(rows.size, np.uint64)
    for i in numba.prange(rows.size):
        keys[i] = node_key(now, later, dependence, elapsed, np.int64(originals[rows[i]]))
    return keys


def draw_edges(
    lists: ListArrays,
    rows: Ids,
    keys: Keys,
    until: Ids,
    way: int,
    fanout: int,
    excluded: ExcludedEdges,
) -> Drawn:
    """Draw in-edges of the nodes with some rows, [n] int64, in one of the ways above, by their
    keys, [n] uint64, which draws in time overwrite.

    For draws in time, there are [n] times ``until`` which they have to be there, and places of
    excluded edges are in order of time. Excluded edges have rows for nodes. Fanout -1 = all.
    """
    if way == UNIFORM and not until.size and not excluded.nodes.size:
        offsets, edges, positions = draw_uniformly(lists.indptr, rows, keys, fanout)
    else:
        offsets, edges, positions = draw_in_turns(
            lists.indptr, lists.cumulative_weights, lists.times, lists.by_time, rows, keys, until,
            way, fanout, excluded.nodes, excluded.bounds, excluded.places,
        )  # fmt: skip
    return offsets, _look_up(lists.indices, edges), positions


@kernel(parallel=True)
def draw_uniformly(indptr: Ids, rows: Ids, keys: Keys, fanout: int) -> Drawn:
    """Draw from whole lists, all edges equally likely; return edges in place of their sources.

    Most runs compile this kernel alone. All ways in one kernel would take several times as long.
    """
    firsts, left = _find_lists(indptr, rows)
    offsets = _offsets(left, fanout, False)
    edges = np.empty(offsets[rows.size], np.int64)
    positions = np.empty(offsets[rows.size], np.int64)
    for i in numba.prange(rows.size):
        start, stop = offsets[i], offsets[i + 1]
        draw_positions(keys[i], left[i], stop - start, positions[start:stop])
        for j in range(start, stop):
            edges[j] = firsts[i] + positions[j]
    return offsets, edges, positions


@kernel(parallel=True)
def draw_in_turns(
    indptr: Ids,
    sums: Sums,
    times: Ids,
    by_time: Ids,
    rows: Ids,
    keys: Keys,
    until: Ids,
    way: int,
    fanout: int,
    skipped_rows: Ids,
    bounds: Ids,
    places: Ids,
) -> Drawn:
    """Draw in any way, for some nodes at a time; return edges in place of their sources."""
    size, is_timed = rows.size, times.size > 0 and until.size > 0
    replace = way in (REPLACEMENT, WEIGHTED_REPLACEMENT)
    by_weight = way in (WEIGHTED, WEIGHTED_REPLACEMENT)
    firsts, left = _find_lists(indptr, rows)
    for i in numba.prange(size):
        if until.size:
            keys[i] = absorb(keys[i], np.uint64(until[i]))
        if is_timed:
            left[i] = np.searchsorted(times[firsts[i] : firsts[i] + left[i]], until[i], "right")
        if skipped_rows.size:
            begin, end = find_range(rows[i], skipped_rows, bounds)
            left[i] -= np.searchsorted(places[begin:end], left[i])
    offsets = _offsets(left, fanout, replace)
    edges = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    is_plain = not (is_timed or skipped_rows.size or replace or way == LATEST)
    for turn in numba.prange((size + _TURN - 1) // _TURN):
        scratch, chosen = np.empty(_SHORT, np.int32), np.empty(_TURN + 1, np.int64)
        nodes_of_turn = range(turn * _TURN, min(size, turn * _TURN + _TURN))
        if by_weight:
            # Sums are loaded at once, so that no draw has to wait for them; those of nodes of
            # which all edges are taken are not read.
            touched, number = np.int32(0), np.int64(0)
            for i in nodes_of_turn:
                chosen[number] = i
                number += np.int64(replace or left[i] > offsets[i + 1] - offsets[i])
            for i in chosen[:number]:
                for edge in range(firsts[i], firsts[i] + min(left[i], 512), 16):
                    touched += sums[edge]
            scratch[0] = touched
        for i in nodes_of_turn:
            start, stop, first = offsets[i], offsets[i + 1], firsts[i]
            if is_plain and left[i] == stop - start:
                for j in range(start, stop):
                    positions[j] = j - start
                    edges[j] = first + j - start
                continue
            begin, end = np.int64(0), np.int64(0)
            if skipped_rows.size:
                begin, end = find_range(rows[i], skipped_rows, bounds)
            if by_weight and (replace or left[i] > stop - start):
                if stop > start:
                    degree = left[i] + end - begin
                    draw_by_weight(
                        keys[i],
                        sums,
                        first,
                        degree,
                        places,
                        begin,
                        end,
                        replace,
                        scratch,
                        positions,
                        start,
                        stop,
                    )
            else:
                _draw_evenly(keys[i], way, left[i], positions[start:stop])
                for j in range(start, stop):
                    for k in range(begin, end):
                        # Convert a place among the remaining edges to one in the whole list.
                        positions[j] += positions[j] >= places[k]
            for j in range(start, stop):
                if is_timed:
                    positions[j] = by_time[first + positions[j]]
                edges[j] = first + positions[j]
    return offsets, edges, positions


@kernel(inline="always")
def _find_lists(indptr: Ids, rows: Ids) -> tuple[Ids, Ids]:
    """Return [n] int64 each: the first edge of each list, and how many it has."""
    firsts, sizes = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
    for i in numba.prange(rows.size):
        firsts[i] = indptr[rows[i]]
        sizes[i] = indptr[rows[i] + 1] - firsts[i]
    return firsts, sizes


@kernel(inline="always")
def _offsets(left: Ids, fanout: int, replace: bool) -> Ids:
    """Return [n + 1] int64: where the draws of each list begin, given what is left of it."""
    offsets = np.empty(left.size + 1, np.int64)
    offsets[0] = 0
    for i in range(left.size):
        count = left[i] if fanout < 0 else min(left[i], fanout)
        offsets[i + 1] = offsets[i] + (fanout if replace and count else count)
    return offsets


@kernel(parallel=True)
def _look_up(indices: Ids, edges: Ids) -> Ids:
    """Return [n] int64: the sources of edges."""
    sources = np.empty(edges.size, np.int64)
    for j in numba.prange(edges.size):
        sources[j] = indices[edges[j]]
    return sources


@kernel
def _draw_evenly(key: np.uint64, way: int, left: np.int64, out: Ids) -> None:
    """Draw places of a list, all equally likely, or take the last ones."""
    if way == REPLACEMENT:
        for j in range(out.size):
            out[j] = below(variate(key, np.uint64(j)), np.uint64(left))
    elif way == LATEST:
        for j in range(out.size):
            out[j] = left - 1 - j
    else:
        draw_positions(key, left, np.int64(out.size), out)


@kernel
def find_range(node: np.int64, nodes: Ids, bounds: Ids) -> tuple[np.int64, np.int64]:
    """Return the first and last bound of a node's excluded places."""
    # Profiled, np.searchsorted takes several times as long here.
    low, high = np.int64(0), np.int64(nodes.size)
    while low < high:
        middle = (low + high) >> 1
        if nodes[middle] < node:
            low = middle + 1
        else:
            high = middle
    if low < nodes.size and nodes[low] == node:
        return bounds[low], bounds[low + 1]
    return np.int64(0), np.int64(0)


@kernel
def draw_by_weight(
    key: np.uint64,
    sums: Sums,
    first: np.int64,
    degree: np.int64,
    places: Ids,
    begin: np.int64,
    end: np.int64,
    replace: bool,
    scratch: Sums,
    out: Ids,
    start: np.int64,
    stop: np.int64,
) -> None:
    """Write to ``out[start:stop]`` positions of a list in proportion to what is left of its weight.

    Its running sums are ``sums[first:first + degree]``, and the positions that may not be drawn
    ``places[begin:end]``, ascending. Profiled, slices would take a tenth of the time.
    """
    at, total = start, np.int64(sums[first + degree - 1])
    for k in range(begin, end):
        total -= units_at(sums, first, places[k])
    attempts = stop - start if replace else 2 * (stop - start) + 4
    if degree - (end - begin) <= _SHORT and not replace:
        attempts = np.int64(0)
    # One bit for each residue modulo 64 drawn so far. A clear bit proves that a pick is new; for
    # lists of up to 64 edges a set bit proves that it is not.
    seen = np.uint64(0)
    for attempt in range(attempts):
        x = np.int64(below(variate(key, np.uint64(attempt)), np.uint64(total)))
        for k in range(begin, end):
            # Excluded positions ascend, so if ``x`` does not reach one, it reaches no later one.
            units = units_at(sums, first, places[k])
            x += units if x >= sums[first + places[k]] - units else 0
        pick = _find(sums, first, degree, x)
        out[at] = pick
        bit = np.uint64(1) << np.uint64(pick & 63)
        is_new = np.int64((seen & bit) == 0) | np.int64(replace)
        if degree > 64 and is_new == 0:
            is_new = np.int64(1)
            for j in range(start, at):
                is_new &= np.int64(out[j] != pick)
        seen |= bit
        at += is_new
        if at == stop:
            return
    # A multiple of 32 lets the compiler use vector instructions throughout.
    size = (degree + 31) & ~31
    if size > scratch.size:
        scratch = np.empty(size, np.int32)
    for p in range(degree):
        scratch[p] = sums[first + p]
    for p in range(degree, size):
        scratch[p] = _ENDLESS
    for k in range(begin, end):
        _take(scratch, size, places[k], units_at(sums, first, places[k]), np.int64(0))
    for i in range(start, at):
        _take(scratch, size, out[i], units_at(sums, first, out[i]), np.int64(0))
        total -= units_at(sums, first, out[i])
    pick = units = np.int64(0)
    for i in range(at, stop):
        counter = np.uint64(_SEARCHES + i - start)
        x = np.int64(below(variate(key, counter), np.uint64(total)))
        pick = _take(scratch, size, pick, units, x)
        out[i] = pick
        units = units_at(scratch, np.int64(0), pick)
        total -= units


@kernel(inline="always")
def units_at(sums: Sums, first: np.int64, place: np.int64) -> np.int64:
    """Return the weight of the edge at a position of the list that begins at ``first``."""
    before = np.int64(sums[first + place - 1]) if place else np.int64(0)
    return np.int64(sums[first + place]) - before


@kernel(inline="always")
def _find(sums: Sums, first: np.int64, degree: np.int64, x: np.int64) -> np.int64:
    """Return the first position of a list up to which weights add up to more than ``x``."""
    # It halves powers of two, without a branch, since the processor could not predict it.
    one, shift = np.uint64(1), np.uint64(0)
    while np.uint64(degree) >> shift > one:
        shift += one
    at, rest = np.uint64(first), np.uint64(degree) - (one << shift)
    if rest:
        at += rest * np.uint64(sums[at + rest - one] <= x)
    while shift:
        shift -= one
        at += np.uint64(sums[at + (one << shift) - one] <= x) << shift
    return np.int64(at) - first


@kernel(inline="always")
def _take(left: Sums, size: np.int64, place: np.int64, units: np.int64, x: np.int64) -> np.int64:
    """Subtract a position's weight from running sums, and count the sums of at most ``x``."""
    count, width, most, first = np.int32(0), np.int32(units), np.int32(x), np.int32(place)
    for p in range(size):
        value = np.int32(left[p] - (width if np.int32(p) >= first else np.int32(0)))
        left[p] = value
        # A sum of 64 bits would take twice as many instructions.
        count = np.int32(count + np.int32(value <= most))
    return np.int64(count)


@kernel(parallel=True)
def count_until(indptr: Ids, times: Ids, rows: Ids, until: Ids) -> Ids:
    """Return [n] int64: how many edges of some lists are there at a time for each."""
    counts = np.empty(rows.size, np.int64)
    for i in numba.prange(rows.size):
        first, last = indptr[rows[i]], indptr[rows[i] + 1]
        counts[i] = last - first
        if times.size:
            counts[i] = np.searchsorted(times[first:last], until[i], "right")
    return counts


@kernel(parallel=True)
def list_neighbors(indptr: Ids, indices: Ids, rows: Ids) -> tuple[Ids, Ids]:
    """Concatenate lists: return their [n + 1] bounds, and the [listed] int64 ids in them."""
    bounds, firsts = np.zeros(rows.size + 1, np.int64), np.empty(rows.size, np.int64)
    for i in numba.prange(rows.size):
        firsts[i] = indptr[rows[i]]
        bounds[i + 1] = indptr[rows[i] + 1] - firsts[i]
    for i in range(rows.size):
        bounds[i + 1] += bounds[i]
    listed = np.empty(bounds[rows.size], np.int64)
    for i in numba.prange(rows.size):
        for j in range(bounds[i], bounds[i + 1]):
            listed[j] = indices[firsts[i] + j - bounds[i]]
    return bounds, listed


@kernel(parallel=True)
def flag_labor(bounds: Ids, src_ids: Ids, fanout: int, key: DrawKey) -> NDArray[np.bool_]:
    """Return [listed] bool: whether LABOR-0 draws each edge, given its source's original id."""
    now, later, dependence, elapsed = key
    flags = np.empty(src_ids.size, np.bool_)
    for i in numba.prange(bounds.size - 1):
        degree = np.uint64(bounds[i + 1] - bounds[i])
        # Needs no case for degrees up to the fanout: below() is always less than the degree.
        for j in range(bounds[i], bounds[i + 1]):
            of_source = node_key(now, later, dependence, elapsed, src_ids[j])
            flags[j] = below(variate(of_source, np.uint64(0)), degree) < np.uint64(fanout)
    return flags


@kernel
def take_flagged(bounds: Ids, listed: Ids, flags: NDArray[np.bool_]) -> Drawn:
    """Return the edges whose flag is set, in the order of the neighbor lists."""
    count = np.count_nonzero(flags)
    offsets = np.zeros(bounds.size, np.int64)
    sources, positions = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    place = 0
    for i in range(bounds.size - 1):
        for j in range(bounds[i], bounds[i + 1]):
            # There is no branch here, since the processor could not predict it.
            sources[place] = listed[j]
            positions[place] = j - bounds[i]
            place += flags[j]
        offsets[i + 1] = place
    return offsets, sources[:count], positions[:count]
