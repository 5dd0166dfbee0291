"""Stored forms of rows: what they hold, and how numpy and torch make floats of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cache_server.feature_codec import CODECS, FeatureForm
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
    assert (stored.dtype, stored.shape) == (form.dtype, (60, form.columns(7)))
    assert stored[0].nbytes == form.row_bytes(7)
    for stored_rows in (stored, stored[:0], stored[7:8], stored[::2]):
        for dtype in (torch.float32, torch.float64):
            floats = to_floats(torch.from_numpy(stored_rows.copy()), dtype)
            assert floats.dtype == dtype
            assert np.array_equal(floats.numpy(), form.decode(stored_rows))
    # A product over blocks, in any order, equals that in float64.
    picked, weight = torch.tensor([4, 59, 4, 0]), torch.rand(3, 7, dtype=torch.float64)
    part = RowPart(torch.from_numpy(stored), picked, torch.tensor([0, 2, 3, 1]))
    expected = torch.from_numpy(form.decode(stored)).double()[[4, 0, 59, 4]]
    out = torch.nn.functional.linear(StoredRows.of([part], 4).to(torch.float64), weight)
    assert torch.allclose(out, expected @ weight.t(), rtol=1e-14)


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
