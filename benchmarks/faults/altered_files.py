"""Alters files on disk, and checks that each is refused in one line or read, without a crash."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hopper.cli import main
from hopper.config import load_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import HopperError
from hopper.features import open_graph
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph
from hopper.partition.check_partition import check_partition
from hopper.partition.checksums import check_rows, check_structure
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import check_file

LIMIT = 60.0
DIVISIONS: dict[str, tuple[str, list[str]]] = {
    "divided by node": ("arxiv-like", ["--servers", "2", "--method", "random"]),
    "partitioned topology": (
        "arxiv-like",
        ["--servers", "2", "--method", "random", "--topology", "partitioned"],
    ),
    "typed, divided by node": ("mag-like", ["--servers", "2", "--method", "random"]),
    "divided by relation": ("mag-like", ["--servers", "2", "--method", "meta"]),
    "divided by relation, in parts": (
        "mag-like",
        ["--servers", "4", "--method", "meta", "--layers", "1", "--server-memory", "700K"],
    ),
}
"""by name: preset and options of ``hopper partition``"""
SCALES = {"arxiv-like": "0.003", "mag-like": "0.0005"}
DGL_SHARE = 0.08
"""of the files of other formats: DGL's are read in a process of their own, which takes seconds"""


def alter_files(
    folder: Path, run_dir: Path, count: int, seed: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Alter one file at a time, and read what it belongs to in another process.

    Parameters
    ----------
    run_dir: a finished run's folder, whose checkpoint and best model are altered too.

    Returns
    -------
    Counts of outcomes by kind of file, and ``wrong``, a line for each wrong outcome.
    """
    draw = random.Random(seed)
    divisions = _make_divisions(folder)
    sources = _make_sources(folder)
    plain = _make_plain(folder, run_dir, next(iter(divisions.values())))
    outcomes: dict[str, dict[str, int]] = {}
    wrong = [
        f"{what}: refused, and nothing was altered: {outcome}"
        for what, (owner, read_file) in plain.items()
        if (outcome := _in_a_child(read_file, owner, folder / "said")) != "accepted"
    ]
    for _ in range(count):
        kind, what, owner, file, read = _choose(draw, divisions, plain, sources, run_dir)
        original = file.read_bytes()
        how = _alter(file, draw)
        unchanged = file.is_file() and file.read_bytes() == original
        target = file if kind == "tensors" else owner
        outcome = _in_a_child(read, target, folder / "said")
        if outcome == "accepted" and kind in ("division", "tensors") and not unchanged:
            outcome = "silent"
        if outcome not in ("refused", "accepted"):
            wrong.append(f"{what}: {file.relative_to(owner.parent)} {how}: {outcome}")
        counts = outcomes.setdefault(what, {})
        short = outcome if outcome in ("refused", "accepted") else "wrong"
        counts[short] = counts.get(short, 0) + 1
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(original)
        shutil.rmtree(folder / "out", ignore_errors=True)
        leftovers = [path.name for path in folder.glob(".out*")]
        if leftovers:
            wrong.append(f"{what}: {how}: left behind {leftovers}")
        advance(1)
    return {"files": count, "outcomes": dict(sorted(outcomes.items())), "wrong": wrong}


def _choose(
    draw: random.Random,
    divisions: dict[str, Path],
    plain: dict[str, tuple[Path, Callable[[Path], None]]],
    sources: dict[str, Path],
    run_dir: Path,
) -> tuple[str, str, Path, Path, Callable[[Path], None]]:
    """Choose a file. Return its kind, the name and path of what it belongs to, the file, and its
    reader."""
    kind = draw.choices(("division", "tensors", "source", "plain"), (5, 2, 3, 2))[0]
    if kind == "tensors":
        what = draw.choice(("checkpoint", "best.safetensors"))
        newest = CheckpointFiles(run_dir).newest if what == "checkpoint" else None
        return kind, what, run_dir, newest or run_dir / what, check_file
    if kind == "division":
        what = draw.choice(list(divisions))
        owner, read_file = divisions[what], _read_division
    elif kind == "plain":
        what = draw.choice(list(plain))
        owner, read_file = plain[what]
    else:
        what = "dgl file" if draw.random() < DGL_SHARE else draw.choice(("npy", "csv"))
        owner = sources[what]
        read_file = _import_as(what.split()[0], owner.parent / "out")
    files = [owner] if owner.is_file() else sorted(owner.rglob("*"))
    return kind, what, owner, draw.choice([path for path in files if path.is_file()]), read_file


def _alter(file: Path, draw: random.Random) -> str:
    """Alter a file in one of many ways, and return which."""
    content = bytearray(file.read_bytes())
    how = draw.choices(
        ("bits flipped", "cut short", "longer", "a page of zeros", "emptied", "missing", "a pipe",
         "a folder"),
        (60, 10, 5, 10, 3, 4, 4, 4),
    )[0]  # fmt: skip
    if not content and how in ("bits flipped", "cut short", "a page of zeros", "emptied"):
        how = "longer"
    if how == "bits flipped":
        for _ in range(draw.choice((1, 1, 1, 2, 8, 50))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "cut short":
        del content[draw.randrange(len(content)) :]
    elif how == "longer":
        content += draw.randbytes(draw.choice((1, 8, 4096)))
    elif how == "a page of zeros":
        start = draw.randrange(len(content)) // 4096 * 4096
        content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    elif how == "emptied":
        content.clear()
    file.unlink()
    if how == "a pipe":
        os.mkfifo(file)
    elif how == "a folder":
        file.mkdir()
    elif how != "missing":
        file.write_bytes(content)
    return how


def _in_a_child(read_file: Callable[[Path], None], target: Path, log_file: Path) -> str:
    """Read a path in another process. Return "accepted", "refused", or what went wrong."""
    child = os.fork()
    if not child:
        code = 3
        try:
            with log_file.open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                try:
                    read_file(target)
                    code = 0
                except HopperError as error:
                    code = 1 if "\n" not in str(error) else 2
                    print(error, file=log)
                except BaseException as error:
                    print(repr(error), file=log)
        finally:
            os._exit(code)
    deadline = time.monotonic() + LIMIT
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"not read in {LIMIT:g} s"
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    words = log_file.read_text(errors="replace").strip()[-300:]
    names = {0: "accepted", 1: "refused", 2: f"several lines: {words}"}
    return names.get(code, f"an error that is none of ours: {words}")


def _read_division(path: Path) -> None:
    graph = PartitionedGraph.open(path)
    servers = range(graph.book.servers)
    check_structure(path, servers)
    check_partition(graph, servers)
    check_rows(path, servers)


def _import_as(kind: str, out: Path) -> Callable[[Path], None]:
    def read(source: Path) -> None:
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            code = main(["dataset", "import", kind, str(source), "--out", str(out)])
        if code == 0:
            GraphDirectory.open(out, check="full")
        else:
            # Earlier lines report progress.
            last_line = output.getvalue().strip().splitlines()[-1]
            assert last_line.startswith("error: "), output.getvalue()
            raise HopperError(last_line)

    return read


def _make_divisions(folder: Path) -> dict[str, Path]:
    for preset, scale in SCALES.items():
        _run(["dataset", "make", preset, "--scale", scale, "--out", str(folder / preset)])
    folders = {}
    for name, (preset, options) in DIVISIONS.items():
        folders[name] = folder / name.replace(" ", "-").replace(",", "")
        _run(["partition", str(folder / preset), *options, "--out", str(folders[name])])
    return folders


def _make_sources(folder: Path) -> dict[str, Path]:
    """Write a small graph in the formats of other libraries."""
    import dgl
    import torch
    from scipy.sparse import random as random_sparse
    from scipy.sparse import save_npz

    rng = np.random.default_rng(1)
    npy, csv, saved = folder / "npy", folder / "csv", folder / "saved.bin"
    npy.mkdir()
    np.save(npy / "edges.npy", rng.integers(0, 50, (2, 300)))
    np.save(npy / "feat.npy", rng.random((50, 6), np.float32))
    save_npz(npy / "sparse.npz", random_sparse(40, 8, 0.2, "csr", dtype=np.float32))
    np.save(npy / "writes.npy", np.stack([rng.integers(0, 40, 99), rng.integers(0, 50, 99)]))
    np.save(npy / "label.npy", rng.integers(0, 3, 50))
    np.save(npy / "train.npy", np.arange(0, 50, 2))
    meta = {
        "name": "small",
        "node_types": {
            "paper": {"count": 50, "feat_file": "feat.npy"},
            "author": {"count": 40, "feat_file": "sparse.npz"},
        },
        "edge_types": [
            {"src": "paper", "rel": "cites", "dst": "paper", "file": "edges.npy"},
            {"src": "author", "rel": "writes", "dst": "paper", "file": "writes.npy"},
        ],
        "target_type": "paper",
        "num_classes": 3,
        "labels": {"paper": "label.npy"},
        "splits": {"train": {"file": "train.npy"}},
    }
    (npy / "meta.json").write_text(json.dumps(meta))
    csv.mkdir()
    lines = [f"{i},{i % 3},{'train' if i % 2 else 'val'},{i / 7}" for i in range(50)]
    (csv / "nodes.csv").write_text("\n".join(["id,label,split,x", *lines, ""]))
    ends = rng.integers(0, 50, (99, 2))
    (csv / "edges.csv").write_text("\n".join(["src,dst", *(f"{a},{b}" for a, b in ends), ""]))
    graph = dgl.graph((torch.arange(99) % 7, torch.arange(99) % 50), num_nodes=50)
    graph.ndata["feat"] = torch.ones(50, 3)
    graph.ndata["label"] = torch.arange(50) % 2
    dgl.save_graphs(str(saved), [graph])
    return {"npy": npy, "csv": csv, "dgl file": saved}


def _make_plain(
    folder: Path, run_dir: Path, divided: Path
) -> dict[str, tuple[Path, Callable[[Path], None]]]:
    """Make what has no checksums, a graph directory and a configuration, with their readers."""
    config = folder / "config.json"
    values = json.loads((run_dir / "config.json").read_text())
    values["data"]["partitioned"] = str(divided)
    config.write_text(json.dumps(values))
    return {
        "graph directory": (folder / "mag-like", _read_graph),
        "configuration": (config, _read_config),
    }


def _read_graph(path: Path) -> None:
    GraphDirectory.open(path, check="full")


def _read_config(path: Path) -> None:
    config = load_config(path)
    check_request(Request(config, open_graph(config)))


def _run(arguments: list[str]) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(arguments)
    if code:
        sys.exit(f"hopper {' '.join(arguments)} ended with {code}: {output.getvalue()}")
