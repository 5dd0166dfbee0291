"""The description of a hop's draw that ranks send to servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

Method = Literal[
    "uniform", "labor", "replacement", "weighted", "weighted_replacement", "temporal", "recent"
]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
BY_WEIGHT: Final = ("weighted", "weighted_replacement")
IN_TIME: Final = ("temporal", "recent")
LARGEST_FANOUT: Final = 1 << 20
"""the largest fanout that a server accepts"""
Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""[destinations + 1] offsets, [edges] source ids and [edges] positions in the neighbour lists"""


class HopDraw(NamedTuple):
    """The way in which neighbours are drawn at one hop of one relation.

    Attributes
    ----------
    method: ``uniform`` draws without replacement and ``replacement`` with it, all neighbours
        equally likely. ``weighted`` and ``weighted_replacement`` do so in proportion to weights.
        ``labor`` is LABOR-0. ``temporal`` draws uniformly from the edges that are there at a time,
        ``recent`` takes the latest of them.
    fanout: neighbours a destination; -1 = all (that are there), whatever the method.
    key: uint64 key, which the key of each node's draw extends.
    """

    method: Method
    fanout: int
    key: int

    @property
    def takes_all(self) -> bool:
        """Return whether all neighbours (that are there) are taken, each once."""
        return self.fanout == -1

    @property
    def in_time(self) -> bool:
        """Return whether the draw depends on a time for each node."""
        return self.method in IN_TIME

    @classmethod
    def parse(cls, method: str, fanout: int, key: int) -> HopDraw:
        """Check a request's values and make a draw of them.

        Raises
        ------
        BadRequest: the method is unknown, or the fanout out of range.
        """
        for known in METHODS:
            if known == method:
                break
        else:
            raise BadRequest(f"method: expected one of {', '.join(METHODS)}, found {method!r:.100}")
        if fanout != -1 and not 1 <= fanout <= LARGEST_FANOUT:
            raise BadRequest(f"fanout: expected -1 or 1 to {LARGEST_FANOUT}, found {fanout}")
        return cls(known, fanout, key)


@dataclass(frozen=True)
class ServerDraw:
    """A draw that a server was asked to make.

    Attributes
    ----------
    nodes: [n] int64 global ids of destinations.
    how: the method, fanout and key.
    until: [n] int64 times of their roots, for draws in time; None for others.
    src, dst: [k] int64 global ids of the pairs of nodes whose edges may not be drawn.
    """

    nodes: NDArray[np.int64]
    how: HopDraw
    until: NDArray[np.int64] | None
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
