"""Which rows a cache of a given size holds (Heta, section 6).

A type's share of the cache is in proportion to its visits, or to its visits times the time that a
missing byte of it costs; within a share the rows that are visited most come first. What a type
cannot use, since no more of its rows were visited, is dealt out again in the same proportion.
``benefit`` knows no shares: it ranks single rows of all types by visits times penalty per byte.
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

Ids = NDArray[np.int64]
Policy = Literal["lru", "hotness", "hotness+penalty", "benefit"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


@dataclass(frozen=True)
class TypeProfile:
    """What presampling and measuring found out about one node type, on one rank.

    Attributes
    ----------
    row_bytes: of a row in the cache.
    rows: how many could be missing at all, visited or not.
    ids: [n] int64 distinct global ids, or places among a rank's own rows: the rows that were
        visited and could be missing.
    visits: [n] int64, at least 1: in how many iterations each was read.
    penalty: seconds that a missing byte costs; 0 where it was not measured.
    """

    row_bytes: int
    rows: int
    ids: Ids
    visits: Ids
    penalty: float = 0.0

    @property
    def total(self) -> int:
        """Visits of all rows together."""
        return int(self.visits.sum())

    @cached_property
    def hottest(self) -> NDArray[np.int64]:
        """[n] int64: places of ``ids``, most visits first, then by id."""
        return np.lexsort((self.ids, -self.visits))


Profile = Mapping[str, TypeProfile]


@dataclass(frozen=True)
class CachePlan:
    """What a cache holds.

    Attributes
    ----------
    room: by type, how many rows it has room for.
    held: by type, [n] int64 global ids that it begins with, most valuable first; none under
        ``lru``, which fills itself.
    """

    policy: Policy
    room: Mapping[str, int]
    held: Mapping[str, Ids]

    def used(self, profile: Profile) -> int:
        """Bytes of all rows that there is room for."""
        return sum(rows * profile[each].row_bytes for each, rows in self.room.items())

    def hits(self, profile: Profile) -> dict[str, int]:
        """By type, how many of the profile's visits would have found their row."""
        return {
            each: int(known.visits[np.isin(known.ids, self.held[each])].sum())
            for each, known in profile.items()
        }

    def saved_seconds(self, profile: Profile) -> float:
        """Time that the profile's visits would not have taken."""
        found = self.hits(profile)
        return sum(found[each] * known.penalty * known.row_bytes for each, known in profile.items())


def parse_cache_size(text: str) -> int | float:
    """Bytes of a size such as "512M", or, of "10%", the share 0.1 of what could be missing.

    Raises
    ------
    RequestError: neither, or there is no room for anything.
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
    """Bytes of a size, as of :func:`parse_cache_size`."""
    size = parse_cache_size(text)
    if isinstance(size, int):
        return size
    return round(size * sum(known.rows * known.row_bytes for known in profile.values()))


def plan_cache(profile: Profile, policy: Policy, size: int) -> CachePlan:
    """Fill a cache.

    Parameters
    ----------
    profile: by node type.
    size: bytes of rows, maps from ids to rows not counted; 0 is allowed.
    """
    if policy == "lru":
        room = _whole_rows(profile, share_out(size, *_by_table(profile)), size, _tables(profile))
        return CachePlan(policy, room, dict.fromkeys(profile, np.empty(0, np.int64)))
    visited = {each: known.ids.size for each, known in profile.items()}
    if policy == "benefit":
        room = _most_valuable(profile, size)
    else:
        weights = {
            each: known.total * (known.penalty if policy == "hotness+penalty" else 1.0)
            for each, known in profile.items()
        }
        needs = {each: visited[each] * known.row_bytes for each, known in profile.items()}
        room = _whole_rows(profile, share_out(size, weights, needs), size, visited)
    held = {each: known.ids[known.hottest[: room[each]]] for each, known in profile.items()}
    return CachePlan(policy, room, held)


def share_out(size: int, weights: Mapping[str, float], needs: Mapping[str, int]) -> dict[str, int]:
    """By type, bytes in proportion to weights, but never more than it needs; what that leaves is
    dealt out among the others, in the same proportion.

    Parameters
    ----------
    weights: at least 0; a type that weighs nothing gets nothing.
    """
    shares = dict.fromkeys(weights, 0)
    open_types = [each for each, weight in weights.items() if weight > 0 and needs[each]]
    left = size
    while open_types:
        total = sum(weights[each] for each in open_types)
        full = [each for each in open_types if left * weights[each] >= needs[each] * total]
        if not full:
            return shares | {each: int(left * weights[each] / total) for each in open_types}
        for each in full:
            shares[each] = needs[each]
            left -= needs[each]
        open_types = [each for each in open_types if each not in full]
    return shares


def _whole_rows(
    profile: Profile, shares: Mapping[str, int], size: int, most: Mapping[str, int]
) -> dict[str, int]:
    """Rows of shares; bytes that make no whole row go to the types with the largest shares."""
    rows = {each: shares[each] // known.row_bytes for each, known in profile.items()}
    left = size - sum(rows[each] * known.row_bytes for each, known in profile.items())
    for each in sorted(profile, key=lambda name: (-shares[name], name)):
        more = min(left // profile[each].row_bytes, most[each] - rows[each])
        if shares[each] and more > 0:
            rows[each] += more
            left -= more * profile[each].row_bytes
    return rows


def _most_valuable(profile: Profile, size: int) -> dict[str, int]:
    """How many rows of each type are among the most valuable ones that fit together."""
    names = sorted(profile)
    values = [profile[each].visits[profile[each].hottest] * profile[each].penalty for each in names]
    kinds = np.repeat(np.arange(len(names)), [own.size for own in values])
    widths = np.array([profile[each].row_bytes for each in names], np.int64)
    # Stable: rows of a type stay in their order, hottest first.
    order = np.argsort(-np.concatenate([*values, np.empty(0)]), kind="stable")
    fits = int(np.searchsorted(np.cumsum(widths[kinds[order]]), size, side="right"))
    counts = np.bincount(kinds[order[:fits]], minlength=len(names))
    rows = {each: int(count) for each, count in zip(names, counts, strict=True)}
    left = size - sum(rows[each] * profile[each].row_bytes for each in names)
    for kind in kinds[order[fits:]]:
        # The row that did not fit any more may leave room for narrower ones.
        each = names[kind]
        if left < widths.min():
            break
        if profile[each].row_bytes <= left:
            rows[each] += 1
            left -= profile[each].row_bytes
    return rows


def _tables(profile: Profile) -> dict[str, int]:
    return {each: known.rows for each, known in profile.items()}


def _by_table(profile: Profile) -> tuple[dict[str, float], dict[str, int]]:
    """What is known before anything is sampled: weights and needs by the bytes of all rows."""
    needs = {each: known.rows * known.row_bytes for each, known in profile.items()}
    return {each: float(need) for each, need in needs.items()}, needs
