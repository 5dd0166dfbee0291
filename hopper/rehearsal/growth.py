"""Extrapolates an engine's epochs from a few rehearsed numbers of servers to many."""

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

# What the bytes of a cause may grow with, the most likely first: "remote" rows of roots, "servers"
# for sums over servers, "ranks" for what goes around all ranks over every link.
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
    """An epoch with a number of servers; ``rehearsed`` or, if not, extrapolated."""

    servers: int
    epoch_seconds: float
    bytes: int
    rehearsed: bool


@dataclass(frozen=True)
class Growth:
    """One engine's points, by ascending number of servers."""

    engine: str
    points: tuple[Point, ...]


def grow(rehearsed: Mapping[int, Estimate], roots: int, batch: int, link: Link) -> Growth:
    """Extrapolate an engine's epochs to 2 to 1,024 servers.

    The bytes of each cause, and the seconds that the link does not explain, are fitted to the
    rehearsed numbers of servers. If there is only one, bytes grow with the first entry of
    :data:`_GROW_WITH`, and those seconds stay the same.

    Parameters
    ----------
    rehearsed: estimates by number of servers, which is at least 2.
    roots: roots of an epoch.
    batch: most roots of a rank in an iteration.
    """
    ranks = link.ranks_per_server
    counts = sorted(rehearsed)
    sizes = [_Size(count, ranks, roots, batch) for count in counts]
    estimates = [rehearsed[count] for count in counts]
    by_cause = {
        cause: _fit(
            [size.of(name) for size in sizes for name in _GROW_WITH[cause][: len(sizes)]],
            [(estimate.iteration_bytes or {})[cause] for estimate in estimates],
        )
        for cause in CAUSES
    }
    unexplained = [
        max(
            0.0,
            estimate.iteration_seconds - _on_links(link, _sum(estimate.iteration_bytes), count),
        )
        for estimate, count in zip(estimates, counts, strict=True)
    ]
    names = ("one",) if len(sizes) == 1 else ("work", "steps", "one")[: len(sizes)]
    seconds = _fit([size.of(name) for size in sizes for name in names], unexplained)
    points = []
    for count in sorted({*SERVERS, *counts}):
        if count in rehearsed:
            estimate = rehearsed[count]
            points.append(Point(count, estimate.epoch_seconds, estimate.total_bytes, True))
            continue
        size = _Size(count, ranks, roots, batch)
        sent = sum(
            float(factors @ [size.of(name) for name in _GROW_WITH[cause][: factors.size]])
            for cause, factors in by_cause.items()
        )
        took = float(seconds @ [size.of(name) for name in names]) + _on_links(link, sent, count)
        points.append(Point(count, took * size.iterations, round(sent * size.iterations), False))
    return Growth(estimates[0].engine, tuple(points))


@dataclass(frozen=True)
class _Size:
    """A number of servers, and the quantities of an iteration that depend on it."""

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
        """Return the quantity of a name in :data:`_GROW_WITH`, or "work", "steps" or "one"."""
        roots_per_iteration = self.roots / self.iterations
        values = {
            "remote": roots_per_iteration * (1 - 1 / self.servers),
            "servers": self.servers - 1.0,
            "ranks": float(self.ranks * self.servers),
            "work": roots_per_iteration / self.ranks,
            "steps": float(self.ranks),
            "one": 1.0,
        }
        return values[name]


def _on_links(link: Link, sent: float, servers: int) -> float:
    """Return the seconds that all servers' bytes take, and the latency of a sum around them."""
    return link.seconds(sent / servers) + 2 * (servers - 1) * link.latency


def _sum(values: Mapping[Cause, int] | None) -> float:
    return float(sum((values or {}).values()))


def _fit(flat: Sequence[float], values: Sequence[float]) -> NDArray[np.float64]:
    """Fit [m] non-negative factors by least squares.

    Parameters
    ----------
    flat: the m quantities of the first point, then those of the next.
    values: the value of each point.
    """
    sizes = np.array(flat, float).reshape(len(values), -1)
    observed = np.array(values, float)
    width = sizes.shape[1]
    best, least = np.zeros(width), float((observed**2).sum())
    # There are few quantities, so all subsets with non-zero factors can be tried.
    for count in range(1, width + 1):
        for columns in combinations(range(width), count):
            part = sizes[:, columns]
            factors = np.linalg.lstsq(part, observed, rcond=None)[0]
            error = float(((part @ factors - observed) ** 2).sum())
            if (factors >= 0).all() and error < least - 1e-9 * (1 + least):
                best, least = np.zeros(width), error
                best[list(columns)] = factors
    return best
