"""Damaged and malicious sources are refused in one line, and leave no files."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from hopper.cli import main
from hopper.graph import GraphDirectory

META: dict[str, Any] = {
    "name": "small",
    "source": "made up",
    "node_types": {
        "paper": {"count": 6, "feat_file": "feat__paper.npy"},
        "author": {"count": 4, "feat_file": "feat__author.npz"},
    },
    "edge_types": [
        {"src": "author", "rel": "writes", "dst": "paper", "file": "edges.npy", "count": 7}
    ],
    "target_type": "paper",
    "num_classes": 3,
    "labels": {"paper": "label.npy"},
    "splits": {"train": {"file": "train.npy"}, "val": {"file": "val.npy"}},
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder that can be imported."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps(META))
    generator = np.random.default_rng(2)
    np.save(folder / "feat__paper.npy", generator.standard_normal((6, 5), dtype=np.float32))
    dense = generator.integers(0, 2, (4, 9)).astype(np.float32)
    sparse.save_npz(folder / "feat__author.npz", sparse.csr_matrix(dense))
    np.save(folder / "edges.npy", np.array([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0]]))
    np.save(folder / "label.npy", np.array([0, 1, 2, 0, 1, 2]))
    np.save(folder / "train.npy", np.array([0, 1, 2]))
    np.save(folder / "val.npy", np.array([3, 4]))
    return folder


@pytest.fixture
def refuse(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return a function that imports the folder, and returns the line that refuses it."""

    def import_and_refuse() -> str:
        files_before = sorted(tmp_path.iterdir())
        assert main(["dataset", "import", "npy", str(source), "--out", str(tmp_path / "out")]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1, error
        assert sorted(tmp_path.iterdir()) == files_before
        return error

    return import_and_refuse


def test_an_undamaged_folder_is_imported(source: Path, tmp_path: Path) -> None:
    assert main(["dataset", "import", "npy", str(source), "--out", str(tmp_path / "out")]) == 0
    graph = GraphDirectory.open(tmp_path / "out")
    dense = sparse.load_npz(source / "feat__author.npz").toarray()
    np.testing.assert_array_equal(graph.features("author"), dense)


def paths_of_values(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value of a JSON document."""
    children: list[Any] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    return [
        path,
        *(
            inner_path
            for key, child in children
            for inner_path in paths_of_values(child, (*path, key))
        ),
    ]


WRONG: list[Any] = [None, True, -1, 1.5, "x", "", [], {}, 10**30, [[[]]], "\0", "../../etc"]


def test_wrong_values_anywhere_in_meta_are_refused_or_change_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At each place of the document stands one half of the bad values, at the next the other."""
    for number, path in enumerate(paths_of_values(META)[1:]):
        for bad_value in WRONG[number % 2 :: 2]:
            meta = json.loads(json.dumps(META))
            holder = meta
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = bad_value
            (source / "meta.json").write_text(json.dumps(meta))
            out = tmp_path / f"out-{number}"
            code = main(["dataset", "import", "npy", str(source), "--out", str(out)])
            error = capsys.readouterr().err
            assert code in (0, 1)
            assert "Traceback" not in error
            if code:
                assert error.startswith("error: "), (path, bad_value)
                assert error.count("\n") == 1, (path, bad_value, error)
                assert not out.exists()
            else:
                GraphDirectory.open(out)
                shutil.rmtree(out)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"name": 1, "name": 2}', "'name' is given twice"),
        ("\xff", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_meta_that_is_no_object_is_refused(
    source: Path, refuse: Callable[[], str], content: str, text: str
) -> None:
    (source / "meta.json").write_bytes(content.encode("latin-1"))
    assert text in refuse()


def test_files_outside_the_folder_are_refused(
    source: Path, refuse: Callable[[], str], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.ones((6, 5), np.float32))
    (source / "link.npy").symlink_to(secret)
    for name in ("../secret.npy", str(secret), "link.npy"):
        meta = json.loads(json.dumps(META))
        meta["node_types"]["paper"]["feat_file"] = name
        (source / "meta.json").write_text(json.dumps(meta))
        assert "node_types.paper.feat_file: expected a file inside" in refuse()


def test_a_pipe_is_not_waited_for(source: Path, refuse: Callable[[], str]) -> None:
    for name in ("meta.json", "edges.npy", "feat__author.npz", "train.npy"):
        content = (source / name).read_bytes()
        (source / name).unlink()
        os.mkfifo(source / name)
        assert "expected a file" in refuse()
        (source / name).unlink()
        (source / name).write_bytes(content)


ARRAYS: dict[str, tuple[str, Any, str]] = {
    "split out of range": ("train.npy", np.array([0, 10**12]), "split train: expected ids"),
    "split below zero": ("train.npy", np.array([-1, 0]), "split train: expected ids"),
    "split of floats": ("train.npy", np.array([0.0, 1.0]), "split train: expected integers"),
    "split twice": ("train.npy", np.array([1, 1]), "split train"),
    "split of no dimension": ("train.npy", np.array(3), "split train: expected integers of shape"),
    "edge out of range": (
        "edges.npy",
        np.array([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6]]),
        "edges of author/writes/paper: dst of edge 6: expected an id of paper in [0, 6), given 6",
    ),
    "edge below zero": ("edges.npy", np.full((2, 7), -1), "src of edge 0: expected an id"),
    "label beyond classes": ("label.npy", np.array([0, 1, 9, 0, 1, 2]), "labels of paper"),
    "labels of dates": ("label.npy", np.zeros(6, "M8[s]"), "expected integer or float labels"),
    "features of NaN": ("feat__paper.npy", np.full((6, 5), np.nan), "row 0, column 0: expected a"),
    "infinite features": ("feat__paper.npy", np.full((6, 5), np.inf), "given inf (one of 30)"),
    "features beyond float32": ("feat__paper.npy", np.full((6, 5), 1e300), "given inf"),
    "complex features": ("feat__paper.npy", np.ones((6, 5), complex), "given complex128"),
    "dates as features": ("feat__paper.npy", np.zeros((6, 5), "M8[D]"), "given datetime64[D]"),
    "text as features": ("feat__paper.npy", np.full((6, 5), "a"), "expected numbers, given <U1"),
    "features in one row": ("feat__paper.npy", np.ones(30), "expected shape [n, d]"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(
    source: Path, refuse: Callable[[], str], name: str
) -> None:
    file, array, text = ARRAYS[name]
    np.save(source / file, array)
    assert text in refuse()


def test_an_object_array_is_refused(source: Path, refuse: Callable[[], str]) -> None:
    np.save(source / "label.npy", np.array([{}, 1, 2, 3, 4, 5], object), allow_pickle=True)
    assert "label.npy: labels of paper: not a readable .npy file: Object arrays" in refuse()


def test_a_zip_named_npy_is_refused(source: Path, refuse: Callable[[], str]) -> None:
    np.savez(source / "label.npz", np.arange(6))
    (source / "label.npz").rename(source / "label.npy")
    assert "expected one .npy array, given an archive of several" in refuse()
    with zipfile.ZipFile(source / "label.npy", "w") as archive:
        archive.writestr("x", "y" * 100)
    refuse()


def test_indices_beyond_a_sparse_matrix_are_refused(
    source: Path, refuse: Callable[[], str]
) -> None:
    file = source / "feat__author.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    for name, change_array, text in (
        ("indices", lambda a: a + 10**6, "indices must be < 9"),
        ("indices", lambda a: a - 5, "indices must be >= 0"),
        ("indptr", lambda a: a * 1000, "not a SciPy sparse matrix"),
        ("indptr", lambda a: a[::-1].copy(), "not a SciPy sparse matrix"),
        ("shape", lambda a: np.array([-1, 5]), "not a SciPy sparse matrix"),
        ("shape", lambda a: np.array([4, 2**62]), "features of author"),
        ("data", lambda a: a[:-1], "not a SciPy sparse matrix"),
        ("format", lambda a: np.array("csc"), "not a SciPy sparse matrix"),
        ("format", lambda a: np.arange(3), "not a SciPy sparse matrix"),
    ):
        np.savez(file, **(arrays | {name: change_array(arrays[name])}))
        if name == "shape" and text == "features of author":
            # No disk could hold a matrix of that width.
            refuse()
            continue
        assert text in refuse()


def test_flipped_bits_end_in_one_error_line_or_in_a_graph(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(11)
    for number in range(80):
        name = draw.choice(["feat__author.npz", "feat__paper.npy", "edges.npy", "train.npy"])
        file_bytes = (source / name).read_bytes()
        damaged = bytearray(file_bytes)
        for _ in range(draw.choice([1, 1, 3, 20])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        (source / name).write_bytes(damaged[: draw.choice([len(file_bytes), len(file_bytes) // 2])])
        out = tmp_path / f"flipped-{number}"
        code = main(["dataset", "import", "npy", str(source), "--out", str(out)])
        error = capsys.readouterr().err
        assert code == 0 or error.startswith("error: ")
        assert error.count("\n") <= 1, error
        assert out.exists() == (code == 0)
        (source / name).write_bytes(file_bytes)


def test_damaged_dgl_files_leave_nothing(tmp_path: Path) -> None:
    """The library may refuse them, or die of them, and the process with it."""
    dgl = pytest.importorskip("dgl", exc_type=ImportError)
    import torch

    graph = dgl.graph((torch.arange(50) % 7, torch.arange(50) % 5), num_nodes=10)
    graph.ndata["feat"] = torch.ones(10, 3)
    graph.ndata["label"] = torch.arange(10) % 2
    file, out = tmp_path / "saved.bin", tmp_path / "out"
    dgl.save_graphs(str(file), [graph])
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    command = [sys.executable, "-m", "hopper.cli", "dataset", "import", "dgl", str(file)]
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, check=False)
    assert ended.returncode < 0 or ended.stderr.count(b"error: ") == ended.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved.bin"]
