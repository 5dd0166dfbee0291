"""Sparse optimisers against torch's, sums of gradients, the rows that learning begins with, and
records of which some are held in memory."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from hopper.errors import StorageError
from hopper.features import distinct
from hopper.features.cached import Lookups
from hopper.hetero.learnable import Leaf, LeafRows, first_rows
from hopper.hetero.learnable.fetched import merge_places
from hopper.hetero.learnable.leaf import add_rows
from hopper.hetero.row_records import HeldRecords, RowRecords
from hopper.hetero.row_storage import MappedStorage, MemoryStorage
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from tests.conftest import numba_threads

# More rows than one thread handles alone.
ROWS, READ, DIM = 9000, 6000, 5
DTYPES = [torch.float32, torch.float64]
TORCH = {
    "adam": lambda table: torch.optim.SparseAdam([table], lr=0.1),
    "adagrad": lambda table: torch.optim.Adagrad([table], lr=0.1),
    "sgd": lambda table: torch.optim.SGD([table], lr=0.1),
}


# torch's own optimisers make sparse tensors without saying whether to check them.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("kind", ["memory", "mmap"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_updates_equal_torch_s(name, kind, tmp_path):
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    storage = MemoryStorage(torch.device("cpu")) if kind == "memory" else MappedStorage(tmp_path)
    parts = 1 + OPTIMIZERS[name].parts
    stored = storage.zeros(7, parts * 3, torch.float64).view(7, parts, 3)
    records = RowRecords(stored, torch.device("cpu"))
    rows_of_table, torch_rows = records.rows, start.clone().requires_grad_()
    rows_of_table.copy_(start)
    optimizer, expected = OPTIMIZERS[name](0.1), TORCH[name](torch_rows)
    for read in ([0, 3], [3], [], [6, 1, 3], [0]):
        places = torch.tensor(read, dtype=torch.int64)
        gradient = torch.randn(len(read), 3, generator=generator, dtype=torch.float64)
        records.update(records.lend(places.numpy()), optimizer, gradient)
        torch_rows.grad = torch.sparse_coo_tensor(
            places[None], gradient, (7, 3), check_invariants=True
        ).coalesce()
        expected.step()
        assert torch.allclose(rows_of_table, torch_rows.detach(), rtol=0, atol=1e-12)
    # Rows that nobody read stand still.
    assert torch.equal(rows_of_table[[2, 4, 5]], start[[2, 4, 5]])


def test_mapped_tables_are_on_disk_and_leave_no_files(tmp_path):
    folder = tmp_path / "rows"
    table = MappedStorage(folder).zeros(1000, 16, torch.float32)
    assert not table.any()
    table[[3, 999]] += 1.0
    assert table.sum() == 32
    start = table.data_ptr()
    mapping_lines = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if int(line.split("-")[0], 16) <= start < int(line.split()[0].split("-")[1], 16)
    ]
    assert len(mapping_lines) == 1
    # Shared with a file, which has lost its name.
    assert " rw-s " in mapping_lines[0]
    assert mapping_lines[0].endswith("(deleted)")
    assert list(folder.iterdir()) == []
    assert MappedStorage(folder).zeros(0, 16, torch.float32).shape == (0, 16)


def resident_kib(table: torch.Tensor) -> int:
    """Return how many KiB of a table's mapping are in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{table.data_ptr():x}-"):
            return next(int(field.split()[1]) for field in lines if field.startswith("Rss:"))
    raise AssertionError("not mapped")


def test_a_table_that_is_written_out_leaves_memory_and_is_read_from_disk(tmp_path):
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind == "tmpfs":
        pytest.skip("files here are in memory")
    storage = MappedStorage(tmp_path)
    table, second_table = (storage.zeros(1 << 14, 64, torch.float32) for _ in range(2))
    table += torch.arange(64)
    second_table += 1.0
    assert resident_kib(table) == resident_kib(second_table) == 4096
    storage.write_out(table)
    assert resident_kib(table) == 0
    assert resident_kib(second_table) == 4096
    assert torch.equal(table, torch.arange(64.0).expand(1 << 14, 64))
    assert resident_kib(table) == 4096
    storage.write_out(storage.zeros(0, 64, torch.float32))


def test_a_disk_that_is_too_small_is_refused_before_training(tmp_path):
    with pytest.raises(StorageError, match=r"learnable\.folder: .*: a table of \d+ bytes: "):
        MappedStorage(tmp_path).zeros(1 << 44, 4, torch.float32)
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match=r"file/rows: a table of 64 bytes: Not a dir"):
        MappedStorage(file / "rows").zeros(4, 4, torch.float32)


def test_first_rows_are_a_function_of_seed_type_and_id():
    ids = np.array([5, 2, 900])
    rows = first_rows(3, "author", ids, 64)
    assert np.array_equal(rows[::-1], first_rows(3, "author", ids[::-1].copy(), 64))
    assert not np.array_equal(rows, first_rows(4, "author", ids, 64))
    assert not np.array_equal(rows, first_rows(3, "paper", ids, 64))
    rows_of_many_nodes = first_rows(0, "author", np.arange(2000), 16)
    assert abs(rows_of_many_nodes.mean()) < 0.01
    assert rows_of_many_nodes.var() == pytest.approx(1 / 16, rel=0.02)
    scaled = first_rows(0, "author", np.arange(2000), 16, deviation=0.03)
    np.testing.assert_allclose(scaled, rows_of_many_nodes * (4 * 0.03))
    assert first_rows(0, "author", np.empty(0, np.int64), 4).shape == (0, 4)


def test_rows_that_several_passes_read_are_one_leaf():
    table = torch.arange(12.0).view(6, 2)
    ids = distinct([np.array([4, 1]), np.array([1, 5])])
    assert ids.tolist() == [1, 4, 5]
    leaf = Leaf(ids, table[ids], learns=True)
    rows = LeafRows({"a": leaf}, {"a": "a", "a below b": "a"})
    first, second = rows.of("a", np.array([5, 1])), rows.of("a below b", np.array([1]))
    assert first.tolist() == [[10, 11], [2, 3]]
    (first.sum() + 2 * second.sum()).backward()
    assert leaf.gradient.tolist() == [[3, 3], [0, 0], [1, 1]]
    # All rows at once, then some of them again.
    rows.of("a", ids[::-1].copy()).sum().backward()
    rows.of("a", ids[:2]).sum().backward()
    assert leaf.gradient.tolist() == [[5, 5], [2, 2], [2, 2]]
    table_leaf = Leaf(ids, table, learns=True, places=np.array([5, 0, 2]))
    assert table_leaf.of(ids[1:]).tolist() == [[0, 1], [4, 5]]
    (table_leaf.of(ids) * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert table_leaf.gradient[[5, 0, 2]].tolist() == [[1, 1], [2, 2], [3, 3]]
    frozen = Leaf(np.array([1]), table[1:2], learns=False)
    assert not frozen.of(np.array([1])).requires_grad
    assert distinct([]).size == 0


@pytest.fixture(params=[1, 2])
def threads(request) -> Iterator[int]:
    if request.param > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("too few processors")
    with numba_threads(request.param):
        yield request.param


def random_tensor(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def random_places() -> np.ndarray:
    return np.random.default_rng(3).permutation(ROWS)[:READ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_adding_gradients_equals_torch(dtype, threads):
    rows, places = random_tensor(READ, DIM, dtype=dtype), random_places()
    index = torch.from_numpy(places)
    sums = random_tensor(ROWS, DIM, dtype=dtype, seed=1)
    expected = sums.index_add(0, index, rows)
    add_rows(rows, places, sums)
    assert torch.equal(sums, expected)
    # Gradients may come as one row for all.
    add_rows(torch.ones(1, 1, dtype=dtype).expand(READ, DIM), places, sums)
    assert torch.equal(sums, expected.index_add(0, index, torch.ones_like(rows)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OPTIMIZERS.values())
@pytest.mark.parametrize(("scale", "factor", "l2"), [(1.0, 1.0, 0.0), (0.25, 0.7, 0.01)])
def test_updates_in_place_equal_torch_s(kind, scale, factor, l2, dtype, threads):
    """Update some records of a table by the kernel, and copies of them by torch's operations."""
    table = random_tensor(ROWS, 1 + kind.parts, DIM, dtype=dtype)
    table[:, 1:] = 0
    table_before, places = table.clone(), random_places()
    copies, kernel_optimizer, torch_optimizer = table[places], kind(0.1, l2), kind(0.1, l2)
    for step in range(3):
        gradient = random_tensor(READ, DIM, dtype=dtype, seed=step)
        kernel_optimizer.step(table, gradient, places, scale=scale, factor=factor)
        scaled_gradient = gradient * scale + l2 * copies[:, 0]
        size = torch_optimizer._begin(0.1 * factor)
        torch_optimizer._update_by_torch(copies, scaled_gradient, size)
    # torch's square roots may be off by the last bit.
    limit = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(table[places], copies, rtol=limit, atol=limit)
    other_places = np.setdiff1d(np.arange(ROWS), places)
    assert torch.equal(table[other_places], table_before[other_places])
    # The same of all records in order, to the last bit.
    records, in_order_optimizer = table_before[places], kind(0.1, l2)
    for step in range(3):
        gradient = random_tensor(READ, DIM, dtype=dtype, seed=step)
        in_order_optimizer.step(records, gradient, scale=scale, factor=factor)
    assert torch.equal(records, table[places])


@pytest.mark.parametrize("sizes", [[0], [5], [0, 7, 0], [4, 6], [30, 0, 20, 25], [0, 0]])
def test_places_of_several_ranks_are_merged(sizes):
    generator = np.random.default_rng(len(sizes))
    groups = [np.sort(generator.permutation(40)[:size]) for size in sizes]
    places, within = merge_places(groups)
    assert np.array_equal(places, np.unique(np.concatenate(groups)))
    assert len(within) == len(groups)
    for group, places_of_group in zip(groups, within, strict=True):
        assert np.array_equal(places[places_of_group], group)


# Records in a file, some of which are held in memory, against a plain table

HELD, PARTS = 40, 3


def table() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(HELD, PARTS, DIM, generator=generator)


def make_held_records(stored: Tensor, device: torch.device, room: int, recent: bool) -> HeldRecords:
    places = np.random.default_rng(room).permutation(HELD)[:room]
    return HeldRecords(stored, device, room, None if recent else places)


@pytest.mark.parametrize("recent", [False, True])
@pytest.mark.parametrize("room", [0, 1, 7, HELD])
def test_held_records_equal_a_plain_table(device, room, recent):
    """Read and update random records; at some steps write back or change all of them."""
    generator = np.random.default_rng(room)
    plain, stored = RowRecords(table(), device), table()
    records = make_held_records(stored, device, room, recent)
    requested = 0
    for step in range(150):
        places = torch.from_numpy(generator.permutation(HELD)[: int(generator.integers(0, 14))])
        rows, expected = records.read(places), plain.read(places)
        requested += len(places)
        assert torch.equal(rows, expected)
        change = torch.full((len(places), 1, 1), float(step), device=device)
        records.write(places, rows + change)
        plain.write(places, expected + change)
        repeated_places = generator.integers(0, HELD, 6)
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
    assert (misses == 0) == (room == HELD and not recent)
    assert records.take_lookups() == Lookups()
