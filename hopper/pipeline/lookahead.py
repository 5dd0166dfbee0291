"""Rows of other servers that coming iterations will read again, kept exactly as long as they are
needed.

Which rows an iteration reads is known when it is planned. So what is best to keep is known too: the
rows whose next use comes soonest (Belady, A study of replacement algorithms for a virtual-storage
computer, IBM Systems Journal 5(2), 1966), as far as plans reach.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.features.copy_rows import copy_rows
from hopper.graph.row_form import stored_features
from hopper.partition import PartitionedGraph

Ids = NDArray[np.int64]
Numbers = NDArray[np.int32]
"""of iterations"""

_NEVER: Final = np.iinfo(np.int32).max
"""later than any number of an iteration"""
_NOWHERE: Final = -1


class KnownUses:
    """When nodes of a type are used next, iteration by iteration, in a window of coming ones.

    Parameters
    ----------
    count: of the type's nodes, for each of which four bytes are held.
    """

    def __init__(self, count: int) -> None:
        self._last = np.full(count, _NOWHERE, np.int32)
        """number of the last iteration in the window that uses a node"""
        self._window: deque[tuple[int, Ids, Numbers]] = deque()
        """by iteration: its number, the nodes that it uses, ascending, and when they are next"""

    def add(self, number: int, nodes: Ids) -> None:
        """Let the window reach one iteration further.

        Parameters
        ----------
        number: of the iteration; numbers ascend. nodes: distinct, ascending.
        """
        before = self._last[nodes]
        for earlier, own, following in self._window:
            again = nodes[before == earlier]
            following[np.searchsorted(own, again)] = number
        self._last[nodes] = number
        self._window.append((number, nodes, np.full(nodes.size, _NEVER, np.int32)))

    def take(self) -> tuple[Ids, Numbers]:
        """The nodes of the first iteration of the window, and the numbers of the iterations that
        use them next; the window begins after it from now on."""
        number, nodes, following = self._window.popleft()
        self._last[nodes[self._last[nodes] == number]] = _NOWHERE
        return nodes, following


class KeptRows:
    """Rows of one node type, kept for coming iterations; a
    :class:`hopper.features.cached.HeldRows`.

    Parameters
    ----------
    count: of the type's nodes, for each of which twelve bytes are held. dim, dtype: of a row.
    room: rows that are kept at most.
    """

    evicts = True

    def __init__(self, count: int, dim: int, dtype: np.dtype[Any], room: int) -> None:
        self._rows = np.empty((min(room, count), dim), dtype)
        self._slot_of = np.full(count, _NOWHERE, np.int32)
        self._node_in = np.full(len(self._rows), _NOWHERE, np.int64)
        self._next_use = np.full(len(self._rows), _NEVER, np.int32)
        self._free = np.arange(len(self._rows), dtype=np.int32)[::-1].copy()
        self._left = len(self._rows)
        """how many of ``_free``, from the front, are free"""
        self._uses = KnownUses(count)
        self._wanted = np.full(count, _NEVER, np.int32)
        """of nodes of the iteration under way that are to be kept: when they are used next"""
        self._now: Ids = np.empty(0, np.int64)
        self._was_read = np.zeros(len(self._rows), np.bool_)
        """in the iteration under way"""

    @property
    def dim(self) -> int:
        """Of a row."""
        return int(self._rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a row."""
        return self._rows.dtype

    @property
    def kept(self) -> int:
        """How many rows are kept now."""
        return len(self._rows) - self._left

    def foresee(self, number: int, nodes: Ids) -> None:
        """Learn what a coming iteration reads; as of :meth:`KnownUses.add`."""
        self._uses.add(number, nodes)

    def begin(self) -> None:
        """Begin the next iteration that was foreseen: decide what of it will be kept, and what is
        given up for that."""
        nodes, following = self._uses.take()
        slots = self._slot_of[nodes]
        here = slots >= 0
        self._next_use[slots[here]] = following[here]
        again = following < _NEVER
        used = np.flatnonzero(self._node_in >= 0)
        used = used[self._next_use[used] < _NEVER]
        coming = nodes[~here & again]
        uses = np.concatenate((self._next_use[used], following[~here & again]))
        owners = np.concatenate((self._node_in[used], coming))
        # Whatever is used again soonest; of what is used again together, by id.
        best = np.lexsort((owners, uses))[: len(self._rows)]
        chosen = np.zeros(uses.size, bool)
        chosen[best] = True
        turn = np.zeros(len(self._rows), bool)
        turn[slots[here]] = True
        in_turn = turn[used]
        self._let_go(used[~chosen[: used.size] & ~in_turn])
        # They are read once more, and not kept after that.
        self._next_use[used[~chosen[: used.size] & in_turn]] = _NEVER
        taken = chosen[used.size :]
        self._now, self._wanted[coming[taken]] = coming[taken], following[~here & again][taken]

    def end(self) -> None:
        """End the iteration: let go of what is not used again."""
        slots = np.flatnonzero((self._node_in >= 0) & (self._next_use == _NEVER))
        self._let_go(slots)
        self._wanted[self._now] = _NEVER
        self._was_read[:] = False

    def find(self, ids: Ids) -> NDArray[np.int32]:
        """[n]: where the rows of ids are; -1 = not here."""
        return self._slot_of[ids]

    def copy(self, slots: NDArray[np.int32], out: NDArray[Any], places: Ids) -> None:
        """``out[places]`` become the rows in these places."""
        copy_rows(self._rows, slots.astype(np.int64), out, places)
        self._was_read[slots] = True

    def missed(self, ids: Ids, table: NDArray[Any], places: Ids) -> None:
        """Keep those of the rows in ``table[places]`` that were chosen, as far as there is room."""
        chosen = (self._wanted[ids] < _NEVER) & (self._slot_of[ids] < 0)
        nodes, first = np.unique(ids[chosen], return_index=True)
        if nodes.size > self._left:
            # What was read for the last time makes room.
            self._let_go(np.flatnonzero(self._was_read & (self._next_use == _NEVER)))
        nodes, first = nodes[: self._left], first[: self._left]
        slots = self._free[self._left - nodes.size : self._left]
        self._left -= nodes.size
        copy_rows(table, places[chosen][first], self._rows, slots.astype(np.int64))
        self._slot_of[nodes], self._node_in[slots] = slots, nodes
        self._next_use[slots] = self._wanted[nodes]

    def _let_go(self, slots: NDArray[np.integer[Any]]) -> None:
        self._slot_of[self._node_in[slots]] = _NOWHERE
        self._node_in[slots], self._next_use[slots] = _NOWHERE, _NEVER
        self._was_read[slots] = False
        self._free[self._left : self._left + slots.size] = slots
        self._left += slots.size


class Lookahead:
    """The rows of all types that are kept for coming iterations.

    Parameters
    ----------
    kept: by node type.
    """

    def __init__(self, kept: Mapping[str, KeptRows]) -> None:
        self.kept = kept
        self._number = 0

    @classmethod
    def make(
        cls, graph: PartitionedGraph, window: Sequence[Mapping[str, Ids]], nbytes: int
    ) -> Lookahead:
        """Room for rows, dealt to types in proportion to the bytes that are first read of each.

        Parameters
        ----------
        window: of the first iterations, by node type, the nodes of other servers that are read.
        nbytes: of all rows that are kept at most.
        """
        formats = {}
        for node_type in sorted({each for reads in window for each in reads}):
            stored = stored_features(graph.schema.table(node_type))
            assert stored is not None
            formats[node_type] = stored.columns, stored.dtype
        row_bytes = {each: dim * dtype.itemsize for each, (dim, dtype) in formats.items()}
        read = {
            each: row_bytes[each] * sum(reads[each].size for reads in window if each in reads)
            for each in formats
        }
        whole = max(1, sum(read.values()))
        kept = {
            each: KeptRows(
                graph.schema.table(each).count,
                *formats[each],
                nbytes * read[each] // whole // row_bytes[each],
            )
            for each in formats
        }
        return cls(kept)

    def foresee(self, reads: Mapping[str, Ids]) -> None:
        """Learn what a coming iteration reads of other servers.

        Parameters
        ----------
        reads: by node type, distinct nodes, ascending.
        """
        for node_type, rows in self.kept.items():
            rows.foresee(self._number, reads.get(node_type, np.empty(0, np.int64)))
        self._number += 1

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within it the next iteration is read."""
        for rows in self.kept.values():
            rows.begin()
        yield
        for rows in self.kept.values():
            rows.end()
