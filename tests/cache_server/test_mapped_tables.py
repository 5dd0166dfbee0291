"""Of tables that do not fit memory, rows are read without their neighbours, and many ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

from cache_server.store import mapped_rows
from cache_server.store.manifest import TableSpec, write_manifest
from cache_server.store.mapped_rows import read_rows_alone
from cache_server.store.read_ahead import read_ahead
from cache_server.store.shard import Shard


def may_read_around(file: Path) -> bool:
    """Tell whether the kernel may read around pages of a mapped file (no "rr" among its flags)."""
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if str(file) in part.splitlines()[0]:
            flags = re.search(r"VmFlags:(.*)", part)
            assert flags is not None
            return "rr" not in flags[1].split()
    raise AssertionError(f"{file} is not mapped")


def test_only_tables_that_do_not_fit_memory_are_read_without_neighbouring_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "rows.npy", np.ones((1000, 100), np.float32))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert not read_rows_alone(mapped)
    assert may_read_around(tmp_path / "rows.npy")
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 700_000)
    assert read_rows_alone(np.asarray(mapped)[:, :])
    assert not may_read_around(tmp_path / "rows.npy")
    assert mapped.sum() == 100_000
    # What is in memory has no kernel to be told.
    assert not read_rows_alone(np.ones((1000, 100), np.float32))
    assert mmap.MADV_RANDOM > 0
    # The kernel reads a small table at once, however little memory there is.
    np.save(tmp_path / "few.npy", np.ones((1000, 10), np.float32))
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 0)
    assert not read_rows_alone(np.load(tmp_path / "few.npy", mmap_mode="r"))


def test_tables_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three tables fits half of the memory, and together they exceed all of it."""
    specs = []
    for name in ("features/paper", "features/author", "edge_features/writes"):
        file = tmp_path / f"{name}.npy"
        file.parent.mkdir(exist_ok=True)
        np.save(file, np.ones((1000, 100), np.float32))
        kind, type = name.split("/")
        rows = {"first_id": 0, "count": 1000, "dim": 100, "dtype": "float32"}
        specs.append(TableSpec(kind=kind, type=type, file=f"{name}.npy", **rows))
    write_manifest(tmp_path, 0, 1, specs)
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 1_000_000)
    shard = Shard.open(tmp_path)
    assert [may_read_around(tmp_path / spec.file) for spec in specs] == [False] * 3
    out = np.empty((2, 400), np.uint8)
    shard.table("features", "paper").gather(np.array([7, 3]), out)
    assert (out.view(np.float32) == 1).all()


def in_memory(table: np.ndarray) -> np.ndarray:
    """Return [n] bool: which rows of a mapped table are in memory."""
    first = table.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = table.ctypes.data + table.nbytes - first
    pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(length), pages) == 0
    resident = np.frombuffer(pages, np.uint8) & 1
    begin = table.ctypes.data - first + np.arange(len(table)) * table.strides[0]
    last = (begin + table.strides[0] - 1) // mmap.PAGESIZE
    return (resident[begin // mmap.PAGESIZE] & resident[last]).astype(bool)


@pytest.mark.parametrize("width", [1500, 3])
def test_rows_read_ahead_are_in_memory_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """There are more rows than are read ahead at a time, with repeats among them."""
    count = 4000 if width > 1000 else 100_000
    file = tmp_path / "rows.npy"
    np.save(file, np.arange(count * width, dtype=np.float32).reshape(count, width))
    table = np.load(file, mmap_mode="r")
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 0)
    assert read_rows_alone(table)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(table).any():
        pytest.skip(f"{file} stays in memory")
    rows = np.random.default_rng(1).integers(0, count // 2, 700)
    read_ahead(table, rows[:0])
    assert not in_memory(table).any()
    read_ahead(table, rows)
    resident = in_memory(table)
    assert resident[rows].all()
    assert resident[count // 2 + 4000 // width + 1 :].mean() < 0.1
    np.testing.assert_array_equal(table[rows], np.add.outer(rows * width, np.arange(width)))
