"""What every FeatureSource promises, whether rows are in files, on servers or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from hopper.errors import GraphError

if TYPE_CHECKING:
    from hopper.features import RowKind

TABLES = [
    ("features", "paper"),
    ("features", "author"),
    ("features", "venue"),
    ("features", "ghost"),
    ("features", "journal"),
    ("features", "series"),
    ("labels", "paper"),
    ("labels", "author"),
    ("labels", "venue"),
    ("labels", "word"),
]
every_table = pytest.mark.parametrize(("kind", "node_type"), TABLES)


@every_table
def test_rows_come_in_the_requested_order(
    source: Any, tables: Any, kind: RowKind, node_type: str
) -> None:
    """Random requests with repeats, against the graph directory's own rows, bit for bit."""
    expected, all_ids = tables.rows(source.graph, kind, node_type), source.ids(node_type)
    generator = np.random.default_rng(5)
    for size in (1, 2, 30, 200):
        ids = generator.choice(all_ids, size) if all_ids.size else all_ids
        rows = source.rows.gather(kind, node_type, ids)
        assert rows.dtype == expected.dtype
        assert rows.shape == (ids.size, expected.shape[1])
        assert np.array_equal(rows, expected[ids])


@every_table
def test_every_row_ascending_and_descending(
    source: Any, tables: Any, kind: RowKind, node_type: str
) -> None:
    """Ids that are ordered by home are read by another path than ids that are not."""
    expected, all_ids = tables.rows(source.graph, kind, node_type), source.ids(node_type)
    assert np.array_equal(source.rows.gather(kind, node_type, all_ids), expected[all_ids])
    descending = all_ids[::-1].copy()
    assert np.array_equal(source.rows.gather(kind, node_type, descending), expected[descending])


@every_table
def test_no_rows(source: Any, tables: Any, kind: RowKind, node_type: str) -> None:
    expected = tables.rows(source.graph, kind, node_type)
    rows = source.rows.gather(kind, node_type, np.empty(0, np.int64))
    assert rows.shape == (0, expected.shape[1])
    assert rows.dtype == expected.dtype


def test_rows_are_the_callers_own(source: Any, tables: Any) -> None:
    """Torch uses returned rows without a copy, so they must be writable and shared with no one."""
    ids = source.ids("paper")[:4]
    tensor = torch.from_numpy(source.rows.gather("features", "paper", ids))
    tensor.zero_()
    expected = tables.rows(source.graph, "features", "paper")[ids]
    assert np.array_equal(source.rows.gather("features", "paper", ids), expected)


@pytest.mark.parametrize("kind", ["features", "labels"])
@pytest.mark.parametrize("bad_id", [-1, 90, 1 << 40])
def test_an_id_that_does_not_exist(source: Any, kind: RowKind, bad_id: int) -> None:
    ids = np.append(source.ids("paper")[:3], bad_id)
    with pytest.raises(GraphError, match=str(bad_id)):
        source.rows.gather(kind, "paper", ids)


@pytest.mark.parametrize("kind", ["features", "labels"])
@pytest.mark.parametrize("ids", [[0], []])
def test_a_node_type_that_does_not_exist(source: Any, kind: RowKind, ids: list[int]) -> None:
    with pytest.raises(GraphError, match="'editor'"):
        source.rows.gather(kind, "editor", np.array(ids, np.int64))


@pytest.mark.parametrize(("kind", "node_type"), [("features", "word"), ("labels", "ghost")])
@pytest.mark.parametrize("size", [0, 3])
def test_a_type_without_such_rows(source: Any, kind: RowKind, node_type: str, size: int) -> None:
    ids = source.ids(node_type)[:size]
    with pytest.raises(GraphError, match=f"'{node_type}' has no {kind}"):
        source.rows.gather(kind, node_type, ids)
