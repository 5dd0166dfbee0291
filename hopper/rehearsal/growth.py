"""How epochs grow with servers: from a few numbers of them that were rehearsed to many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.rehearsal.estimate import Estimate
from hopper.rehearsal.link import Link
from hopper.traffic import CAUSES, Cause

SERVERS: Final = tuple(2**power for power in range(1, 11))
"""2 to 1,024"""

# What bytes of a cause grow with, the most likely first: rows that roots read, and do not live with
# them; sums over servers; what goes around all ranks, over every link.
_GROW_WITH: Final[Mapping[Cause, tuple[str, ...]]] = {
    "feature": ("remote", "servers", "ranks"),
    "topology": ("remote", "servers", "ranks"),
    "partial": ("remote", "servers", "ranks"),
    "model": ("ranks",),
    "gradient": ("servers", "ranks"),
    "control": ("ranks", "servers"),
}


@dataclass(frozen=True)
class Point:
    """An epoch with a number of servers. rehearsed: or else extrapolated."""

    servers: int
    epoch_seconds: float
    bytes: int
    rehearsed: bool


@dataclass(frozen=True)
class Growth:
    """One engine's points, servers ascending."""

    engine: str
    points: tuple[Point, ...]


def grow(rehearsed: Mapping[int, Estimate], roots: int, batch: int, link: Link) -> Growth:
    """An engine's epochs with 2 to 1,024 servers.

    Bytes of a cause, and seconds that the link does not explain, are what they were found to grow
    with. From one number of servers that is the likeliest of :data:`_GROW_WITH`, and of an
    iteration's seconds these stay as they are.

    Parameters
    ----------
    rehearsed: by servers, two at least. roots: of an epoch. batch: of a rank, at most.
    """
    ranks = link.ranks_per_server
    counts = sorted(rehearsed)
    known = [_Size(each, ranks, roots, batch) for each in counts]
    iterations = [rehearsed[each] for each in counts]
    by_cause = {
        cause: _fit(
            [size.of(name) for size in known for name in _GROW_WITH[cause][: len(known)]],
            [(each.iteration_bytes or {})[cause] for each in iterations],
        )
        for cause in CAUSES
    }
    rest = [
        max(0.0, each.iteration_seconds - _on_links(link, _sum(each.iteration_bytes), count))
        for each, count in zip(iterations, counts, strict=True)
    ]
    names = ("one",) if len(known) == 1 else ("work", "steps", "one")[: len(known)]
    seconds = _fit([size.of(name) for size in known for name in names], rest)
    points = []
    for count in sorted({*SERVERS, *counts}):
        if count in rehearsed:
            found = rehearsed[count]
            points.append(Point(count, found.epoch_seconds, found.total_bytes, True))
            continue
        size = _Size(count, ranks, roots, batch)
        sent = sum(
            float(factors @ [size.of(name) for name in _GROW_WITH[cause][: factors.size]])
            for cause, factors in by_cause.items()
        )
        took = float(seconds @ [size.of(name) for name in names]) + _on_links(link, sent, count)
        points.append(Point(count, took * size.iterations, round(sent * size.iterations), False))
    return Growth(iterations[0].engine, tuple(points))


@dataclass(frozen=True)
class _Size:
    """A number of servers, and what follows from it for an iteration."""

    servers: int
    ranks_per_server: int
    roots: int
    batch: int

    @property
    def ranks(self) -> int:
        return self.servers * self.ranks_per_server

    @property
    def iterations(self) -> int:
        return -(-self.roots // (self.batch * self.ranks))

    def of(self, name: str) -> float:
        """What something grows with."""
        of_an_iteration = self.roots / self.iterations
        values = {
            "remote": of_an_iteration * (1 - 1 / self.servers),
            "servers": self.servers - 1.0,
            "ranks": float(self.ranks * self.servers),
            "work": of_an_iteration / self.ranks,
            "steps": float(self.ranks),
            "one": 1.0,
        }
        return values[name]


def _on_links(link: Link, sent: float, servers: int) -> float:
    """Seconds that bytes of all servers take, and the steps of a sum around them."""
    return link.seconds(sent / servers) + 2 * (servers - 1) * link.latency


def _sum(values: Mapping[Cause, int] | None) -> float:
    return float(sum((values or {}).values()))


def _fit(flat: Sequence[float], values: Sequence[float]) -> NDArray[np.float64]:
    """[m] factors, none below 0, of least squares: the sizes of each point side by side."""
    sizes = np.array(flat, float).reshape(len(values), -1)
    wanted = np.array(values, float)
    width = sizes.shape[1]
    best, least = np.zeros(width), float((wanted**2).sum())
    # Of so few all choices can be tried.
    for count in range(1, width + 1):
        for chosen in combinations(range(width), count):
            part = sizes[:, chosen]
            factors = np.linalg.lstsq(part, wanted, rcond=None)[0]
            left = float(((part @ factors - wanted) ** 2).sum())
            if (factors >= 0).all() and left < least - 1e-9 * (1 + least):
                best, least = np.zeros(width), left
                best[list(chosen)] = factors
    return best
