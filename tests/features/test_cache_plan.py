"""Which rows a cache gets: shares and rows against numbers worked out by hand."""

import numpy as np
import pytest

from hopper.errors import RequestError
from hopper.features.cache_plan import (
    POLICIES,
    Profile,
    TypeProfile,
    cache_bytes,
    parse_cache_size,
    plan_cache,
    share_out,
)

# Visits: a 8 + 4 + 2 + 1 = 15 over rows of 10 bytes, b 3 + 2 + 1 = 6 over rows of 40.
A = TypeProfile(10, 100, np.array([7, 3, 9, 1]), np.array([4, 8, 2, 1]), 3e-9)
B = TypeProfile(40, 5, np.array([0, 2, 4]), np.array([1, 3, 2]), 1e-9)
BOTH: Profile = {"a": A, "b": B}
NOTHING = np.empty(0, np.int64)


def test_bytes_that_a_type_cannot_use_go_to_the_others():
    """a and b are full in turn: 90 * 3 / 6 > 20, then 70 * 2 / 3 > 30, and c gets the rest."""
    weights, needs = {"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 20, "b": 30, "c": 1000}
    assert share_out(90, weights, needs) == {"a": 20, "b": 30, "c": 40}
    assert share_out(10_000, weights, needs) == needs


def test_types_of_no_weight_get_nothing():
    assert share_out(90, {"a": 0.0, "b": 1.0, "c": 1.0}, {"a": 9, "b": 30, "c": 0}) == {
        "a": 0, "b": 30, "c": 0,
    }  # fmt: skip
    assert share_out(90, {}, {}) == {}


def test_hotness():
    """100 bytes at 15 : 6 are 71 and 28, but a has 4 rows; 60 are one row of b, and 20 over."""
    plan = plan_cache(BOTH, "hotness", 100)
    assert plan.room == {"a": 4, "b": 1}
    assert plan.held["a"].tolist() == [3, 7, 9, 1]
    assert plan.held["b"].tolist() == [2]
    assert plan.used_bytes(BOTH) == 80
    assert plan.hits(BOTH) == {"a": 15, "b": 3}
    assert plan.saved_seconds(BOTH) == pytest.approx(15 * 30e-9 + 3 * 40e-9)


def test_leftover_bytes_go_to_the_largest_share():
    """50 bytes at 15 : 6 are 35 and 14: three rows of a, none of b, and 20 over, for a's last."""
    assert plan_cache(BOTH, "hotness", 50).room == {"a": 4, "b": 0}


def test_penalties_count_beside_visits():
    """60 bytes at 15 x 3 : 6 x 1 are 52 and 7; a takes 40, b the 20 left: no whole row."""
    assert plan_cache(BOTH, "hotness+penalty", 60).room == {"a": 4, "b": 0}
    costly = {"a": A, "b": TypeProfile(B.row_bytes, B.rows, B.ids, B.visits, 60e-9)}
    # At 45 : 360, 90 bytes are 10 and 80.
    assert plan_cache(costly, "hotness+penalty", 90).room == {"a": 1, "b": 2}
    assert plan_cache(costly, "hotness", 90).room == {"a": 4, "b": 1}


def test_benefit_ranks_single_rows():
    """Visits x penalty: a 24, 12, 6, 3, b 3, 2, 1; a's last stands before b's first, by name."""
    assert plan_cache(BOTH, "benefit", 30).room == {"a": 3, "b": 0}
    assert plan_cache(BOTH, "benefit", 80).room == {"a": 4, "b": 1}
    assert plan_cache(BOTH, "benefit", 40 + 120).room == {"a": 4, "b": 3}


def test_benefit_fills_the_gap_that_a_wide_row_leaves():
    """b's rows are worth most and too wide for what is left."""
    costly = {"a": A, "b": TypeProfile(B.row_bytes, B.rows, B.ids, B.visits, 60e-9)}
    plan = plan_cache(costly, "benefit", 60)
    assert plan.room == {"a": 2, "b": 1}
    assert plan.held["a"].tolist() == [3, 7]


def test_rows_of_other_servers_cost_more_than_own():
    """a's rows 3 and 7 are local: values 8, 4, and 2, 1 times 100; b's are below."""
    far = np.array([1e-9, 1e-9, 1e-7, 1e-7])
    apart = {"a": TypeProfile(10, 100, A.ids, A.visits, far), "b": B}
    plan = plan_cache(apart, "benefit", 30)
    assert plan.held["a"].tolist() == [9, 1, 3]
    assert plan.saved_seconds(apart) == pytest.approx((200 + 100 + 8) * 10e-9)
    # By visits, shares count what a visit costs in the mean: 312 to 6.
    assert plan_cache(apart, "hotness+penalty", 30).held["a"].tolist() == [3, 7, 9]
    assert apart["a"].values.sum() / apart["a"].total == pytest.approx(312e-9 / 15)


def test_lru_shares_by_tables():
    """1,000 and 200 bytes of rows: 600 are 500 and 100, of which b's make two rows."""
    unsampled = {n: TypeProfile(of.row_bytes, of.rows, NOTHING, NOTHING) for n, of in BOTH.items()}
    plan = plan_cache(unsampled, "lru", 600)
    assert plan.room == {"a": 52, "b": 2}
    assert all(not ids.size for ids in plan.held.values())
    assert plan_cache(unsampled, "lru", 10_000).room == {"a": 100, "b": 5}


@pytest.mark.parametrize("policy", POLICIES)
def test_plans_fit_every_cache_size(policy):
    """A plan never takes more bytes than the cache has, and a larger cache never saves less."""
    generator = np.random.default_rng(3)
    profile = {
        name: TypeProfile(
            width,
            500,
            generator.permutation(500)[:count],
            generator.integers(1, 50, count),
            float(generator.random()),
        )
        for name, width, count in (("a", 4, 300), ("b", 28, 120), ("c", 1578, 77), ("d", 64, 0))
    }
    all_bytes = sum(of.ids.size * of.row_bytes for of in profile.values())
    saved_by_smaller = -1
    for size in (0, 1, 27, 28, 5_000, 60_000, all_bytes - 1, all_bytes, 2 * all_bytes):
        plan = plan_cache(profile, policy, size)
        assert plan.used_bytes(profile) <= size
        if policy == "lru":
            continue
        assert all(plan.room[name] == ids.size for name, ids in plan.held.items())
        hits = sum(plan.hits(profile).values())
        if policy == "benefit":
            assert plan.saved_seconds(profile) >= saved_by_smaller
            saved_by_smaller = plan.saved_seconds(profile)  # type: ignore[assignment]
        if size >= all_bytes:
            assert hits == sum(type_profile.total for type_profile in profile.values())


def test_sizes():
    assert parse_cache_size("2K") == 2048
    assert parse_cache_size("10%") == pytest.approx(0.1)
    assert cache_bytes("2K", BOTH) == 2048
    assert cache_bytes("10%", BOTH) == round(0.1 * (100 * 10 + 5 * 40))
    for text in ("0", "0%", "101%", "-1%", "x%", "much", "-3M"):
        with pytest.raises(RequestError, match=r"cache\.size: expected"):
            parse_cache_size(text)
