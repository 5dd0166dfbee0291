"""Plans which rows a cache of a given size holds (Heta, section 6).

A node type's share of the cache is proportional to its visits (``hotness``), or to its visits times
the cost of a missing byte (``hotness+penalty``). Within a share the rows with most visits come
first. Space that a type cannot use, because no more of its rows were visited, goes to the other
types in the same proportion. ``benefit`` has no shares: it ranks single rows of all types by visits
times penalty per byte, which may differ between rows of this server and those of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hopper.config.bounds import parse_size
from hopper.errors import RequestError
from hopper.graph.topology import Ids

Policy = Literal["lru", "hotness", "hotness+penalty", "benefit"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


@dataclass(frozen=True)
class TypeProfile:
    """The visits and the miss penalties of one node type, as measured on one rank."""

    row_bytes: int
    """the bytes of a row in the cache"""
    rows: int
    """the number of rows that a cache could miss, visited or not"""
    ids: Ids
    """[n] int64, distinct: the visited rows among them, as global ids or as indices of the rank's
    own rows"""
    visits: Ids
    """[n] int64, at least 1: in how many iterations each row was read"""
    penalty: float | NDArray[np.float64] = 0.0
    """the seconds that a missing byte costs, of all rows or [n] of each; 0 = not measured"""

    @property
    def total(self) -> int:
        """The visits of all rows together."""
        return int(self.visits.sum())

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The visits times the penalty, [n] float64: seconds for each byte of a row."""
        return self.visits * np.float64(self.penalty)

    @cached_property
    def dearest(self) -> Ids:
        """The indices [n], int64, of ``ids`` in order of value, highest first, then of id."""
        return np.lexsort((self.ids, -self.values))


Profile = Mapping[str, TypeProfile]


@dataclass(frozen=True)
class CachePlan:
    """The content of a cache."""

    policy: Policy
    room: Mapping[str, int]
    """by type, the number of rows that the cache has room for"""
    held: Mapping[str, Ids]
    """by type, the global ids [n], int64, of its first rows, most valuable first. Empty under
    ``lru``, which fills the cache during training"""

    def used_bytes(self, profile: Profile) -> int:
        """Return the bytes of all rows that the cache has room for."""
        return sum(rows * profile[name].row_bytes for name, rows in self.room.items())

    def hits(self, profile: Profile) -> dict[str, int]:
        """Return how many of the profile's visits find their row in the cache, by type."""
        return {
            name: int(visited.visits[np.isin(visited.ids, self.held[name])].sum())
            for name, visited in profile.items()
        }

    def saved_seconds(self, profile: Profile) -> float:
        """Return the seconds that the cache saves over the profile's visits."""
        return sum(
            float(visited.values[np.isin(visited.ids, self.held[name])].sum()) * visited.row_bytes
            for name, visited in profile.items()
        )


def parse_cache_size(text: str) -> int | float:
    """Parse a size such as "512M", which returns bytes, or "10%", which returns the share 0.1.

    A share is of all rows that the cache could miss. A RequestError tells that the text is neither,
    or leaves no room for any row.
    """
    if text.strip().endswith("%"):
        try:
            share = float(text.strip()[:-1]) / 100
        except ValueError:
            share = 0.0
        if 0 < share <= 1:
            return share
        raise RequestError(f"cache.size: expected more than 0% and at most 100%, given {text!r}")
    size = parse_size(text, "cache.size")
    if not size:
        raise RequestError(f"cache.size: expected room for rows, given {text!r}")
    return size


def cache_bytes(text: str, profile: Profile) -> int:
    """Return the bytes that a size of :func:`parse_cache_size` means for a profile."""
    size = parse_cache_size(text)
    if isinstance(size, int):
        return size
    return round(size * sum(visited.rows * visited.row_bytes for visited in profile.values()))


def plan_cache(profile: Profile, policy: Policy, size: int) -> CachePlan:
    """Decide how many and which rows of each type a cache holds, given the visits and penalties by
    node type.

    The size is the bytes for rows, without maps from ids to rows. It may be 0.
    """
    if policy == "lru":
        # All rows are candidates, whose bytes are known before sampling.
        rows = {name: visited.rows for name, visited in profile.items()}
        needs = {name: rows[name] * visited.row_bytes for name, visited in profile.items()}
        room = _whole_rows(profile, share_out(size, needs, needs), size, rows)
        return CachePlan(policy, room, dict.fromkeys(profile, np.empty(0, np.int64)))
    counts = {name: visited.ids.size for name, visited in profile.items()}
    if policy == "benefit":
        room = _most_valuable(profile, size)
    else:
        weights = {
            name: float((visited.values if policy == "hotness+penalty" else visited.visits).sum())
            for name, visited in profile.items()
        }
        needs = {name: counts[name] * visited.row_bytes for name, visited in profile.items()}
        room = _whole_rows(profile, share_out(size, weights, needs), size, counts)
    ids = {}
    for name, of in profile.items():
        # Rows with most visits come first, and then those with the lowest ids.
        order = of.dearest if policy == "benefit" else np.lexsort((of.ids, -of.visits))
        ids[name] = of.ids[order[: room[name]]]
    return CachePlan(policy, room, ids)


def share_out(size: int, weights: Mapping[str, float], needs: Mapping[str, int]) -> dict[str, int]:
    """Divide bytes over types in proportion to weights, and give no type more than it needs.

    What a type does not need goes to the other types in the same proportion. Weights are at least
    0; a type of weight 0 gets nothing.
    """
    shares = dict.fromkeys(weights, 0)
    open_types = [name for name, weight in weights.items() if weight > 0 and needs[name]]
    remaining = size
    while open_types:
        total = sum(weights[name] for name in open_types)
        full = [name for name in open_types if remaining * weights[name] >= needs[name] * total]
        if not full:
            return shares | {name: int(remaining * weights[name] / total) for name in open_types}
        for name in full:
            shares[name] = needs[name]
            remaining -= needs[name]
        open_types = [name for name in open_types if name not in full]
    return shares


def _whole_rows(
    profile: Profile, shares: Mapping[str, int], size: int, most: Mapping[str, int]
) -> dict[str, int]:
    """Convert shares of bytes to rows; spare bytes go to the types with the largest shares."""
    rows = {name: shares[name] // visited.row_bytes for name, visited in profile.items()}
    remaining = size - sum(rows[name] * visited.row_bytes for name, visited in profile.items())
    for name in sorted(profile, key=lambda name: (-shares[name], name)):
        more = min(remaining // profile[name].row_bytes, most[name] - rows[name])
        if shares[name] and more > 0:
            rows[name] += more
            remaining -= more * profile[name].row_bytes
    return rows


def _most_valuable(profile: Profile, size: int) -> dict[str, int]:
    """Count the rows of each type among the most valuable rows that fit together."""
    names = sorted(profile)
    values = [profile[name].values[profile[name].dearest] for name in names]
    kinds = np.repeat(np.arange(len(names)), [type_values.size for type_values in values])
    widths = np.array([profile[name].row_bytes for name in names], np.int64)
    # A stable sort keeps rows of a type in their order, dearest first.
    order = np.argsort(-np.concatenate([*values, np.empty(0)]), kind="stable")
    fits = int(np.searchsorted(np.cumsum(widths[kinds[order]]), size, side="right"))
    counts = np.bincount(kinds[order[:fits]], minlength=len(names))
    rows = {name: int(count) for name, count in zip(names, counts, strict=True)}
    remaining = size - sum(rows[name] * profile[name].row_bytes for name in names)
    for kind in kinds[order[fits:]]:
        # Rows that are narrower than the first that did not fit may still fit.
        name = names[kind]
        if remaining < widths.min():
            break
        if profile[name].row_bytes <= remaining:
            rows[name] += 1
            remaining -= profile[name].row_bytes
    return rows
