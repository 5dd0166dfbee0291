"""A server's files open only if they are what the manifest says; rows that do not fit memory are
read without their neighbours, and many ahead."""

import ctypes
import json
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache_server.draws.neighbor_lists import NeighborLists
from cache_server.draws.spec import DrawKey, SamplingSpec
from cache_server.errors import ManifestError
from cache_server.store import mapped_rows
from cache_server.store.manifest import TableSpec, write_manifest
from cache_server.store.mapped_rows import read_rows_alone
from cache_server.store.npy import map_of
from cache_server.store.read_ahead import read_ahead, take_ahead
from cache_server.store.shard import Shard

ENTRY: dict[str, Any] = {
    "kind": "features", "type": "paper", "first_id": 10, "count": 4, "dim": 3,
    "dtype": "float32", "file": "paper.npy",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    np.save(tmp_path / "paper.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    write_manifest(tmp_path, 1, 2, [TableSpec(**ENTRY)])
    return tmp_path


def test_a_written_shard_opens(folder):
    shard = Shard.open(folder)
    assert (shard.server, shard.servers) == (1, 2)
    out = np.empty((1, 12), np.uint8)
    shard.table("features", "paper").gather(np.array([2]), out)
    assert out.view(np.float32).tolist() == [[6, 7, 8]]
    expected = {"schema": 1, "server": 1, "servers": 2, "division": "", "tables": [ENTRY]}
    assert json.loads((folder / "shard.json").read_text()) == expected
    assert sorted(path.name for path in folder.iterdir()) == ["paper.npy", "shard.json"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": 2}, "schema: expected 1, found 2"),
        ({"server": 2}, "server: expected less than 2, found 2"),
        ({"servers": True}, "servers: expected a valid integer, found True"),
        ({"tables": {}}, "tables: expected a valid array, found {}"),
        ({"tables": [ENTRY, ENTRY]}, "tables: features/paper is given twice"),
        ({"tables": [3]}, "tables[0]: expected an object, found 3"),
        ({"type": "a/b"}, "tables[0].type: "),
        ({"file": "../paper.npy"}, "tables[0].file: expected a path inside"),
        ({"dtype": "object"}, "tables[0].dtype: String should match pattern '^(float16|"),
        ({"dim": 0}, "tables[0].dim: expected greater than or equal to 1, found 0"),
        ({"first_id": None}, "tables[0].first_id: expected a valid integer, found None"),
    ],
)
def test_a_bad_manifest_is_named(folder, change, text):
    file = folder / "shard.json"
    content = json.loads(file.read_text())
    (content["tables"][0] if change.keys() <= ENTRY.keys() else content).update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=re.escape(f"{file}: {text}")):
        Shard.open(folder)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((4, 3)), "expected dtype float32, given float64"),
        (np.zeros((4, 3), ">f4"), "expected dtype float32, given >f4"),
        (np.zeros((5, 3), "f4"), "expected shape [4, 3], given [5, 3]"),
        (np.zeros(12, "f4"), "expected shape [4, 3], given [12]"),
        (np.zeros((3, 4), "f4").T, "expected C order"),
        (np.array([{}], dtype=object), "not a readable .npy file"),
        (b"", "not a readable .npy file"),
        (b"cut short", "not a readable .npy file"),
        (None, "missing file"),
    ],
)
def test_a_file_that_differs_is_named(folder, array, text):
    file = folder / "paper.npy"
    if array is None:
        file.unlink()
    elif isinstance(array, bytes):
        file.write_bytes(file.read_bytes()[:-4] if array else b"")
    else:
        np.save(file, array, allow_pickle=True)
    for open_or_write in (
        lambda: Shard.open(folder),
        lambda: write_manifest(folder, 1, 2, [TableSpec(**ENTRY)]),
    ):
        with pytest.raises(ManifestError, match=re.escape(f"{file}: {text}")):
            open_or_write()


def may_read_around(file: Path) -> bool:
    """Tell whether the kernel may read around pages of a mapped file (no "rr" among its flags)."""
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if str(file) in part.splitlines()[0]:
            return "rr" not in part.partition("VmFlags:")[2].split()
    raise AssertionError(f"{file} is not mapped")


def test_only_what_does_not_fit_memory_is_read_without_neighbouring_pages(tmp_path, monkeypatch):
    """Each of three tables fits half of the memory, and together they exceed all of it."""
    specs, rows = [], np.ones((1000, 100), np.float32)
    facts: Any = {"first_id": 0, "count": 1000, "dim": 100, "dtype": "float32"}
    for name in ("features/paper", "features/author", "edge_features/writes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{name}.npy", rows)
        kind, type = name.split("/")
        specs.append(TableSpec(kind=kind, type=type, file=f"{name}.npy", **facts))
    write_manifest(tmp_path, 0, 1, specs)
    np.save(tmp_path / "few.npy", rows[:, :10])
    for memory, may in ((10_000_000, True), (1_000_000, False)):
        monkeypatch.setattr(mapped_rows, "available_memory", lambda memory=memory: memory)
        shard = Shard.open(tmp_path)
        assert [may_read_around(tmp_path / spec.file) for spec in specs] == [may] * 3
        out = np.empty((2, 400), np.uint8)
        shard.table("features", "paper").gather(np.array([7, 3]), out)
        assert (out.view(np.float32) == 1).all()
        del shard
    # What is in memory has no kernel to be told, and a small table is read at once.
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 0)
    assert not read_rows_alone(rows)
    assert not read_rows_alone(np.load(tmp_path / "few.npy", mmap_mode="r"))


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


def drop_pages(file: Path, table: np.ndarray) -> None:
    mapped = map_of(table)
    assert mapped is not None
    mapped.madvise(mmap.MADV_DONTNEED)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(table).any():
        pytest.skip(f"{file} stays in memory")


def test_lists_beyond_memory_are_drawn_from_as_others(tmp_path, monkeypatch):
    generator, ids = np.random.default_rng(0), np.arange(50_000)
    indptr = np.append(0, generator.integers(0, 40, ids.size).cumsum())
    arrays = {"indptr": indptr, "indices": generator.integers(0, ids.size, indptr[-1])}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 0)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}
    alone, others = (NeighborLists(**lists, src_ids=ids, dst_ids=ids) for lists in (mapped, arrays))
    nodes = generator.permutation(ids.size // 2)[:300]
    for method in ("uniform", "labor"):
        spec = SamplingSpec(method, 5, DrawKey(np.uint64(1)))
        drop_pages(tmp_path / "indices.npy", mapped["indices"][:, None])
        for drawn, expected in zip(alone.draw(nodes, spec), others.draw(nodes, spec), strict=True):
            np.testing.assert_array_equal(drawn, expected)
        resident = in_memory(mapped["indices"][:, None])
        assert resident[indptr[nodes[indptr[nodes] < indptr[nodes + 1]]]].all()
        assert resident[indptr[ids.size // 2 + 1000] :].mean() < 0.1


@pytest.mark.parametrize("width", [1500, 3])
def test_rows_read_ahead_are_in_memory_and_others_are_not(tmp_path, monkeypatch, width):
    """There are more rows than are read ahead at a time, with repeats among them."""
    count = 4000 if width > 1000 else 100_000
    file = tmp_path / "rows.npy"
    np.save(file, np.arange(count * width, dtype=np.float32).reshape(count, width))
    table = np.load(file, mmap_mode="r")
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 0)
    assert read_rows_alone(table)
    drop_pages(file, table)
    rows = np.random.default_rng(1).integers(0, count // 2, 700)
    read_ahead(table, rows[:0])
    assert not in_memory(table).any()
    read_ahead(table, rows)
    resident = in_memory(table)
    assert resident[rows].all()
    assert resident[count // 2 + 4000 // width + 1 :].mean() < 0.1
    taken = np.empty((rows.size, width), np.float32)
    take_ahead(table, rows, taken)
    np.testing.assert_array_equal(taken, np.add.outer(rows * width, np.arange(width)))
    take_ahead(table, rows[:0], taken[:0])
    places = np.random.default_rng(2).permutation(rows.size)
    take_ahead(table, rows, taken, places)
    np.testing.assert_array_equal(taken[places], table[rows])
