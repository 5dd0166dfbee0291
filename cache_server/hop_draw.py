"""How neighbours are drawn at one hop, as ranks and servers tell each other."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

Method = Literal["uniform", "labor", "replacement", "weighted", "weighted_replacement"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
BY_WEIGHT: Final = ("weighted", "weighted_replacement")
LARGEST_FANOUT: Final = 1 << 20
"""that a server is asked for"""
Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""[destinations + 1] offsets, [edges] source ids and [edges] positions in the neighbour lists"""


class HopDraw(NamedTuple):
    """How neighbours are drawn at one hop of one relation.

    Attributes
    ----------
    method: without replacement and all equally likely; by LABOR-0; with replacement; or in
        proportion to weights, without or with replacement.
    fanout: neighbours a destination; -1 = all, whatever the method.
    key: uint64, that the draws of nodes extend.
    """

    method: Method
    fanout: int
    key: int

    @property
    def takes_all(self) -> bool:
        """Whether all neighbours are taken, each once."""
        return self.fanout == -1

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
