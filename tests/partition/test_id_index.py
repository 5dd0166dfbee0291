"""Where ids are in an array, against a plain search."""

from __future__ import annotations

import numpy as np
import pytest

from hopper.partition.id_index import Index


@pytest.mark.parametrize("size", [1, 2, 50, 9000])
@pytest.mark.parametrize("spread", [1, 3, 10_000_000])
@pytest.mark.parametrize("is_ascending", [False, True])
def test_every_id_is_found(size: int, spread: int, is_ascending: bool) -> None:
    generator = np.random.default_rng(size)
    # Half of the ids lie densely at one end, as those of a server's popular nodes may.
    values = np.concatenate((np.arange(size), generator.integers(0, size * spread, size) + size))
    ids = np.unique(values) + 17
    if not is_ascending:
        ids = generator.permutation(ids)
    places = generator.integers(0, ids.size, 2 * size)
    assert np.array_equal(Index(ids).find(ids[places]), places)


@pytest.mark.parametrize("missing_id", [2, 6, 11])
def test_a_missing_id_is_an_error(missing_id: int) -> None:
    with pytest.raises(IndexError, match="1 of 2 ids are not among 3"):
        Index(np.array([5, 7, 10])).find(np.array([7, missing_id]))


def test_no_ids() -> None:
    nothing = np.empty(0, np.int64)
    assert Index(nothing).find(nothing).size == 0
    with pytest.raises(IndexError, match="1 of 1 ids are not among 0"):
        Index(nothing).find(np.array([3]))
