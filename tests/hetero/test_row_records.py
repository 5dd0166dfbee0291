"""Records in a file, some of which are held in memory, against a plain table."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hopper.features.cached import Lookups
from hopper.hetero.row_records import HeldRecords, RowRecords

ROWS, PARTS, DIM = 40, 3, 5


def table() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(ROWS, PARTS, DIM, generator=generator)


def make_held_records(stored: Tensor, device: torch.device, room: int, recent: bool) -> HeldRecords:
    places = np.random.default_rng(room).permutation(ROWS)[:room]
    return HeldRecords(stored, device, room, None if recent else places)


@pytest.mark.parametrize("recent", [False, True])
@pytest.mark.parametrize("room", [0, 1, 7, ROWS])
def test_held_records_equal_a_plain_table(device, room, recent):
    """Read and update random records; at some steps write back or change all of them."""
    generator = np.random.default_rng(room)
    plain, stored = RowRecords(table(), device), table()
    records = make_held_records(stored, device, room, recent)
    requested = 0
    for step in range(150):
        places = torch.from_numpy(generator.permutation(ROWS)[: int(generator.integers(0, 14))])
        rows, expected = records.read(places), plain.read(places)
        requested += len(places)
        assert torch.equal(rows, expected)
        change = torch.full((len(places), 1, 1), float(step), device=device)
        records.write(places, rows + change)
        plain.write(places, expected + change)
        repeated_places = generator.integers(0, ROWS, 6)
        rows, expected_rows = torch.empty(2, 6, DIM, device=device)
        records.read_rows(repeated_places, rows)
        plain.read_rows(repeated_places, expected_rows)
        assert torch.equal(rows, expected_rows)
        if step % 20 == 7:
            records.write_back()
            assert torch.equal(stored, plain.stored)
        if step % 50 == 30:
            records.write_back()
            for either in (plain, records):
                either.rows.mul_(0.5)
                either.read_again()
    lookups = records.take_lookups()
    assert lookups is not None
    hits, misses = lookups
    assert hits + misses == requested
    assert (hits > 0) == (room > 0)
    assert (misses == 0) == (room == ROWS and not recent)
    assert records.take_lookups() == Lookups()
