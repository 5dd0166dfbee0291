"""Stored forms of rows: what they hold, and how numpy and torch make floats of them."""

import numpy as np
import pytest
import torch

from cache_server.feature_codec import CODECS
from hopper.ops import RowPart, StoredRows, to_floats

# [60, 7]: rows of very different size, one of them zero.
ROWS = np.random.default_rng(0).normal(size=(60, 7)) * np.logspace(-12, 4, 60)[:, None]
ROWS[3] = 0


@pytest.mark.parametrize("name", CODECS)
def test_numpy_and_torch_read_the_same_numbers(name):
    form = CODECS[name]
    stored = form.encode(ROWS.astype(np.float32))
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


def test_rounding():
    bits = np.random.default_rng(1).integers(0, 0x7F00_0000, (500, 4), dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFF_0000 | 0x8000  # in the middle of two
    rows = bits.view(np.float32)
    expected = torch.from_numpy(rows).to(torch.bfloat16).float().numpy()
    assert np.array_equal(CODECS["bfloat16"].decode(CODECS["bfloat16"].encode(rows)), expected)
    # A step of int8 is a 127th of the row's largest number, exact but for float32's rounding.
    rows = ROWS.astype(np.float32)
    decoded = CODECS["int8"].decode(CODECS["int8"].encode(rows))
    largest = np.abs(rows).max(1, keepdims=True)
    assert (np.abs(decoded - rows) <= largest * (0.5 / 127 + 1e-6)).all()
    assert np.allclose(np.abs(decoded).max(1, keepdims=True), largest, rtol=1e-6, atol=0)
    assert np.abs(decoded - rows).max() > 0
    # Numbers that a form has are stored exactly.
    rows = np.random.default_rng(2).integers(-64, 64, (30, 5)).astype(np.float32) / 8
    for form in (CODECS["float16"], CODECS["bfloat16"]):
        assert np.array_equal(form.decode(form.encode(rows)), rows)
