"""What a draw of neighbors depends on, besides the nodes and their lists."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

VERSION: Final = 3
"""version of docs/inside/draws.md; another version makes other draws"""
Drawn = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""[destinations + 1] offsets, [edges] source ids and [edges] positions in the neighbor lists"""
Method = Literal[
    "uniform", "labor", "replacement", "weighted", "weighted_replacement", "temporal", "recent"
]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
BY_WEIGHT: Final = ("weighted", "weighted_replacement")
IN_TIME: Final = ("temporal", "recent")
WITH_REPLACEMENT: Final = ("replacement", "weighted_replacement")
LARGEST_FANOUT: Final = 1 << 20
"""the largest fanout that a server accepts"""


class DrawKey(NamedTuple):
    """What a node's original id is absorbed into, to make the key of the node's draws."""

    now: np.uint64
    """key of (use, seed, epoch, period, hop, relation)"""
    later: np.uint64 = np.uint64(0)
    """the same of the next period, in which nodes are whose phase has come"""
    dependence: np.uint64 = np.uint64(1)
    """iterations of a period, for which a node's draws stay the same"""
    elapsed: np.uint64 = np.uint64(0)
    """iterations since the period began"""


class SamplingSpec(NamedTuple):
    """The way in which neighbors are drawn at one hop of one relation."""

    method: Method
    """``uniform`` draws without replacement and ``replacement`` with it, all neighbors equally
    likely. ``weighted`` and ``weighted_replacement`` do so in proportion to weights. ``labor`` is
    LABOR-0. ``temporal`` draws uniformly from the edges that are there at a time, ``recent`` takes
    the latest of them."""
    fanout: int
    """neighbors a destination; -1 = all (that are there), whatever the method"""
    key: DrawKey

    @property
    def takes_all(self) -> bool:
        """Return whether all neighbors (that are there) are taken, each once."""
        return self.fanout == -1

    @property
    def in_time(self) -> bool:
        """Return whether the draw depends on a time for each node."""
        return self.method in IN_TIME

    @classmethod
    def parse(cls, version: int, method: str, fanout: int, key: DrawKey) -> SamplingSpec:
        """Make a spec of a request's values; raise BadRequest of those that do not fit, such as
        another version of draws (0 = the client named none)."""
        if version != VERSION:
            raise BadRequest(
                f"version of draws: this server makes draws of version {VERSION}, the client "
                f"expects {f'version {version}' if version else 'an older one'}; run one version "
                "of Hopper everywhere"
            )
        if method not in METHODS:
            raise BadRequest(f"method: expected one of {', '.join(METHODS)}, found {method!r:.100}")
        if fanout != -1 and not 1 <= fanout <= LARGEST_FANOUT:
            raise BadRequest(f"fanout: expected -1 or 1 to {LARGEST_FANOUT}, found {fanout}")
        if not key.elapsed < key.dependence:
            raise BadRequest(
                f"elapsed: expected less than the dependence of {key.dependence}, found "
                f"{key.elapsed}"
            )
        return cls(method, fanout, key)


class ExcludedEdges(NamedTuple):
    """Edges of one relation that may not be drawn, as places in their destinations' lists."""

    nodes: NDArray[np.int64]
    """[m], ascending: the destinations of these edges"""
    bounds: NDArray[np.int64]
    """[m + 1]: where each destination's places begin in ``places``"""
    places: NDArray[np.int64]
    """[k], ascending for each destination"""
    src: NDArray[np.int64]
    """[n] global ids, by destination: sources of the distinct pairs that these edges join, those
    with lists on other servers included"""
    dst: NDArray[np.int64]
    """[n] global ids, ascending: their destinations"""


class SamplingRequest(NamedTuple):
    """A draw for [n] destinations that a server was asked to make."""

    nodes: NDArray[np.int64]
    spec: SamplingSpec
    until: NDArray[np.int64] | None
    """[n] times of their roots, for draws in time"""
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    """[k] global ids each: ends of the edges that may not be drawn"""
