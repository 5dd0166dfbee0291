"""What every FeatureSource promises, whether rows are in files, on servers or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from hopper.errors import GraphError

if TYPE_CHECKING:
    from hopper.features import RowKind

FEATURES = ("paper", "author", "venue", "ghost", "journal", "series")
LABELS = ("paper", "author", "venue", "word")
TABLES = [("features", name) for name in FEATURES] + [("labels", name) for name in LABELS]


@pytest.mark.parametrize(("kind", "node_type"), TABLES)
def test_rows_come_in_the_requested_order(
    source: Any, tables: Any, kind: RowKind, node_type: str
) -> None:
    """Random ids with repeats, and orders that are read by another path, bit for bit."""
    expected, all_ids = tables.rows(source.graph, kind, node_type), source.ids(node_type)
    generator = np.random.default_rng(5)
    requests = [all_ids, all_ids[::-1].copy(), all_ids[:0]]
    if all_ids.size:
        requests += [generator.choice(all_ids, size) for size in (1, 2, 30, 200)]
    for ids in requests:
        rows = source.rows.gather(kind, node_type, ids)
        assert rows.dtype == expected.dtype
        assert rows.shape == (ids.size, expected.shape[1])
        assert np.array_equal(rows, expected[ids])


def test_rows_are_the_callers_own(source: Any, tables: Any) -> None:
    """Torch uses returned rows without a copy, so they must be writable and shared with no one."""
    ids = source.ids("paper")[:4]
    tensor = torch.from_numpy(source.rows.gather("features", "paper", ids))
    tensor.zero_()
    expected = tables.rows(source.graph, "features", "paper")[ids]
    assert np.array_equal(source.rows.gather("features", "paper", ids), expected)


@pytest.mark.parametrize("kind", ["features", "labels"])
def test_what_does_not_exist_is_named(source: Any, kind: RowKind) -> None:
    for bad_id in (-1, 90, 1 << 40):
        with pytest.raises(GraphError, match=str(bad_id)):
            source.rows.gather(kind, "paper", np.append(source.ids("paper")[:3], bad_id))
    lacking = {"features": "word", "labels": "ghost"}[kind]
    for size in (0, 3):
        with pytest.raises(GraphError, match="'editor'"):
            source.rows.gather(kind, "editor", np.arange(size))
        with pytest.raises(GraphError, match=f"'{lacking}' has no {kind}"):
            source.rows.gather(kind, lacking, source.ids(lacking)[:size])
