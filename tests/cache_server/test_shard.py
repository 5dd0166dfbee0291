"""A shard opens only if manifest and files agree; else the error names the file and the field."""

import json
import mmap

import numpy as np
import pytest

from cache_server.errors import ManifestError
from cache_server.store.manifest import TableSpec, write_manifest
from cache_server.store.shard import Shard

ENTRY = {
    "kind": "features", "type": "paper", "file": "paper.npy", "first_id": 10, "count": 4,
    "dim": 3, "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "paper.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    write_manifest(tmp_path, 1, 2, [TableSpec(**ENTRY)])
    return tmp_path


def is_mapped(array):
    """Whether an array reads a file: it, or what it is a view of, is a memory map."""
    while array is not None and not isinstance(array, np.memmap | mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


def test_a_written_shard_opens(folder):
    shard = Shard.open(folder)
    assert (shard.server, shard.servers) == (1, 2)
    table = shard.table("features", "paper")
    assert is_mapped(table.array)
    np.testing.assert_array_equal(table.array[2], [6, 7, 8])
    assert json.loads((folder / "shard.json").read_text()) == {
        "schema": 1,
        "server": 1,
        "servers": 2,
        "division": "",
        "tables": [ENTRY],
    }
    assert sorted(path.name for path in folder.iterdir()) == ["paper.npy", "shard.json"]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["schema"], 2, "schema: expected 1, found 2"),
        (["server"], 2, "server: expected less than 2, found 2"),
        (["servers"], True, "servers: expected an integer >= 1, found True"),
        (["tables"], {}, "tables: expected a list, found {}"),
        (["tables"], [ENTRY, ENTRY], "tables: features/paper is given twice"),
        (["tables", 0], 3, "tables[0]: expected an object, found int"),
        (["tables", 0, "type"], "a/b", "tables[0].type: expected a name"),
        (["tables", 0, "file"], "../paper.npy", "tables[0].file: expected a path inside"),
        (["tables", 0, "dtype"], "object", "tables[0].dtype: expected one of float16"),
        (["tables", 0, "dim"], 0, "tables[0].dim: expected an integer >= 1, found 0"),
        (["tables", 0, "first_id"], None, "tables[0].first_id: expected an integer >= 0"),
    ],
)
def test_a_bad_manifest_is_named(folder, path, value, text):
    content = json.loads((folder / "shard.json").read_text())
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    (folder / "shard.json").write_text(json.dumps(content))
    with pytest.raises(ManifestError) as caught:
        Shard.open(folder)
    assert f"{folder / 'shard.json'}: {text}" in str(caught.value)


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
        with pytest.raises(ManifestError) as caught:
            open_or_write()
        assert f"{folder / 'paper.npy'}: {text}" in str(caught.value)
