"""Stored forms of rows: what they hold, how they become floats, and what the schema says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cache_server.feature_codec import CODECS, FeatureForm
from hopper.errors import GraphError
from hopper.graph.row_form import RoundingError
from hopper.graph.schema import GraphSchema, NodeType
from hopper.graph.schema_json import schema_from_json, schema_to_json
from hopper.ops import RowPart, StoredRows, to_floats


def make_rows(dim: int = 7) -> NDArray[np.float32]:
    """[60, dim]: rows of very different size, one of them zero."""
    rows = np.random.default_rng(0).normal(size=(60, dim)) * np.logspace(-12, 4, 60)[:, None]
    rows[3] = 0
    return rows.astype(np.float32)


@pytest.mark.parametrize("name", CODECS)
def test_numpy_and_torch_read_the_same_numbers(name: FeatureForm) -> None:
    form, rows = CODECS[name], make_rows()
    stored = form.encode(rows)
    assert stored.dtype == form.dtype
    assert stored.shape == (60, form.columns(7))
    assert stored[0].nbytes == form.row_bytes(7)
    for stored_rows in (stored, stored[:0], stored[7:8], stored[::2]):
        for dtype in (torch.float32, torch.float64):
            floats = to_floats(torch.from_numpy(stored_rows.copy()), dtype)
            assert floats.dtype == dtype
            assert np.array_equal(floats.numpy(), form.decode(stored_rows))


def test_bfloat16_rounds_as_torch_does() -> None:
    bits = np.random.default_rng(1).integers(0, 0x7F00_0000, (500, 4), dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFF_0000 | 0x8000  # in the middle of two
    rows = bits.view(np.float32)
    expected = torch.from_numpy(rows).to(torch.bfloat16).float().numpy()
    form = CODECS["bfloat16"]
    assert np.array_equal(form.decode(form.encode(rows)), expected)


def test_int8_is_off_by_half_a_step_at_most() -> None:
    """A step is a 127th of the row's largest number, which is exact but for float32's rounding."""
    rows = make_rows()
    form = CODECS["int8"]
    decoded, largest = form.decode(form.encode(rows)), np.abs(rows).max(1, keepdims=True)
    assert (np.abs(decoded - rows) <= largest * (0.5 / 127 + 1e-6)).all()
    assert np.allclose(np.abs(decoded).max(1, keepdims=True), largest, rtol=1e-6, atol=0)
    assert np.abs(decoded - rows).max() > 0


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_numbers_that_a_form_has_are_stored_exactly(name: FeatureForm) -> None:
    rows = np.random.default_rng(2).integers(-64, 64, (30, 5)).astype(np.float32) / 8
    assert np.array_equal(CODECS[name].decode(CODECS[name].encode(rows)), rows)


@pytest.mark.parametrize("name", CODECS)
def test_products_of_stored_rows(name: FeatureForm) -> None:
    """Products over blocks, in any order and of two tables, equal those in float64."""
    form, rows = CODECS[name], make_rows(5)
    stored = torch.from_numpy(form.encode(rows))
    picked = torch.tensor([4, 59, 4, 0])
    parts = [
        RowPart(stored, picked, torch.tensor([0, 2, 3, 5])),
        RowPart(stored[10:12].clone(), None, torch.tensor([1, 4])),
    ]
    expected = torch.from_numpy(form.decode(form.encode(rows))).double()
    expected = expected[torch.tensor([4, 10, 59, 4, 11, 0])]
    weight = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    stored_rows = StoredRows.of(parts, 6)
    assert stored_rows.shape == (6, 5)
    assert stored_rows.is_floating_point()
    out = torch.nn.functional.linear(stored_rows.to(torch.float64), weight)
    assert torch.allclose(out, expected @ weight.t(), rtol=1e-14)
    out.sum().backward()
    assert torch.allclose(weight.grad, expected.sum(0).expand(3, 5), rtol=1e-12)
    assert torch.equal(stored_rows.to(torch.float64).to_tensor(), expected)


def test_the_schema_says_how_much_rows_were_rounded() -> None:
    kind = NodeType(4, 3, "int8", feature_error=RoundingError(0.25, 0.004))
    averages = NodeType(4, 3, "float32", feature_error=RoundingError(0.25, None))
    schema = GraphSchema("small", {"paper": kind, "mean": averages}, {}, "paper")
    data = schema_to_json(schema)
    assert schema_from_json(data, "graph.json") == schema
    negative, unknown = {"absolute": -1.0, "relative": 0.0}, {"absolute": None, "relative": 0.0}
    for bad_error in ({"absolute": 1.0}, 3, negative, unknown):
        data["node_types"]["paper"]["feature_error"] = bad_error
        with pytest.raises(GraphError, match=r"node_types\.paper\.feature_error"):
            schema_from_json(data, "graph.json")
