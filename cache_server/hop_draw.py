"""How neighbours are drawn at one hop, as ranks and servers tell each other."""

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
"""that a server is asked for"""
Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""[destinations + 1] offsets, [edges] source ids and [edges] positions in the neighbour lists"""


class HopDraw(NamedTuple):
    """How neighbours are drawn at one hop of one relation.

    Attributes
    ----------
    method: without replacement and all equally likely; by LABOR-0; with replacement; in proportion
        to weights, without or with replacement; or, of those that are there at a time, without
        replacement and all equally likely, or the most recent.
    fanout: neighbours a destination; -1 = all (that are there), whatever the method.
    key: uint64, that the draws of nodes extend.
    """

    method: Method
    fanout: int
    key: int

    @property
    def takes_all(self) -> bool:
        """Whether all neighbours (that are there) are taken, each once."""
        return self.fanout == -1

    @property
    def in_time(self) -> bool:
        """Whether what is drawn depends on a time."""
        return self.method in IN_TIME

    @classmethod
    def checked(cls, method: str, fanout: int, key: int) -> HopDraw:
        """One as it came from elsewhere.

        Raises
        ------
        BadRequest: there is no such method, or no such fanout.
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
    """A draw that a server was asked for.

    Attributes
    ----------
    nodes: [n] int64 global ids of destinations.
    until: [n] int64, their roots' times, in draws in time.
    src, dst: [k] int64 global ids: the pairs of nodes whose edges may not be drawn.
    """

    nodes: NDArray[np.int64]
    how: HopDraw
    until: NDArray[np.int64] | None
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
