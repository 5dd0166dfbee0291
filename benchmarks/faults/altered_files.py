"""Alters files on disk, and checks that each is refused in one line or read, without a crash."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.faults.outcomes import WRONG, Outcome
from hopper.cli import main
from hopper.config import load_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import HopperError, RequestError
from hopper.features import open_graph
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph
from hopper.partition.check_partition import check_partition
from hopper.partition.checksums import check_rows, check_structure
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import check_file

LIMIT: Final = 60.0
DIVISIONS: Final = {
    "divided by node": "arxiv-like --servers 2 --method random",
    "partitioned topology": "arxiv-like --servers 2 --method random --topology partitioned",
    "typed, divided by node": "mag-like --servers 2 --method random",
    "divided by relation": "mag-like --servers 2 --method meta",
    "divided by relation, in parts": "mag-like --servers 4 --method meta --layers 1 "
    "--server-memory 700K",
}
"""by name: preset and options of ``hopper partition``"""
SCALES: Final = {"arxiv-like": "0.003", "mag-like": "0.0005"}
WAYS: Final = {
    "bits flipped": 60, "cut short": 10, "longer": 5, "a page of zeros": 10, "emptied": 3,
    "missing": 4, "a pipe": 4, "a folder": 4,
}  # fmt: skip
"""of altering a file, and their weights"""
REFUSED, ACCEPTED = "refused", "accepted"

Read = Callable[[Path], object]
Owner = tuple[Path, Read, Sequence[Path]]
"""what is read as a whole, by what, and its files"""


def alter(file: Path, draw: random.Random, ways: Sequence[str] = tuple(WAYS)) -> str:
    """Alter a file in one of several ways, and return which."""
    content = bytearray(file.read_bytes())
    how = draw.choices(ways, [WAYS[way] for way in ways])[0]
    place = draw.randrange(len(content) or 1)
    if how == "bits flipped" and content:
        for _ in range(draw.choice((1, 1, 1, 2, 8, 50))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif how == "cut short":
        del content[place:]
    elif how == "longer":
        content += draw.randbytes(draw.choice((1, 8, 4096)))
    elif how == "a page of zeros":
        start = place // 4096 * 4096
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


def alter_files(folder: Path, run_dir: Path, count: int, seed: int) -> Iterator[Outcome]:
    """Alter one file at a time, and read what it belongs to in another process.

    What has checksums, divisions and checkpoints, may be accepted only where it was not altered
    after all. ``run_dir`` is a finished run's folder.
    """
    draw, log = random.Random(seed), folder / "said"
    owners = _make_owners(folder, run_dir)
    for name, (owner, read, _) in owners.items():
        outcome = _in_a_child(read, owner, log)
        if outcome != ACCEPTED:
            raise RequestError(f"bench faults: {name}: refused, though unaltered: {outcome}")
    for _ in range(count):
        name = draw.choice(list(owners))
        owner, read, files = owners[name]
        file = draw.choice(files)
        original, begun = file.read_bytes(), time.monotonic()
        how = alter(file, draw)
        unchanged = file.is_file() and file.read_bytes() == original
        has_checksums = name in DIVISIONS or read is check_file
        outcome = _in_a_child(read, owner, log)
        if outcome == ACCEPTED and has_checksums and not unchanged:
            outcome = f"{WRONG}accepted"
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(original)
        shutil.rmtree(folder / "out", ignore_errors=True)
        if leftovers := [path.name for path in folder.glob(".out*")]:
            outcome = f"{WRONG}left behind {leftovers}"
        target = f"{name}: {file.name}"
        expected = REFUSED if has_checksums else f"{REFUSED} or {ACCEPTED}"
        yield Outcome(f"a file is altered: {how}", target, expected, outcome,
                      time.monotonic() - begun)  # fmt: skip


def _in_a_child(read: Read, target: Path, log: Path) -> str:
    """Read a path in another process. Return whether it was accepted or refused."""
    child = os.fork()
    if not child:
        code = 3
        try:
            with log.open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                try:
                    read(target)
                    code = 0
                except HopperError as error:
                    code = 1 if "\n" not in str(error) else 2
                    print(error, file=output)
                except BaseException as error:
                    print(repr(error), file=output)
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
            return f"{WRONG}not read in {LIMIT:g} s"
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"{WRONG}ended by {signal.Signals(-code).name}"
    words = log.read_text(errors="replace").strip()[-300:]
    wrong = {2: "several lines", 3: "an error that is none of ours"}
    return {0: ACCEPTED, 1: REFUSED}.get(code) or f"{WRONG}{wrong[code]}: {words}"


def _make_owners(folder: Path, run_dir: Path) -> dict[str, Owner]:
    """Make divisions, a graph, a configuration and sources of imports, with their readers."""
    for preset, scale in SCALES.items():
        run_quietly(["dataset", "make", preset, "--scale", scale, "--out", str(folder / preset)])
    owners: dict[str, tuple[Path, Read]] = {"graph directory": (folder / "mag-like", _read_graph)}
    for name, words in DIVISIONS.items():
        preset, *options = words.split()
        owners[name] = (folder / name.replace(" ", "-").replace(",", ""), _read_division)
        run_quietly(["partition", str(folder / preset), *options, "--out", str(owners[name][0])])
    config = folder / "altered-config.json"
    values = json.loads((run_dir / "config.json").read_text())
    values["data"]["partitioned"] = str(owners["divided by node"][0])
    config.write_text(json.dumps(values))
    owners["configuration"] = (config, _read_config)
    newest = CheckpointFiles(run_dir).newest
    assert newest is not None
    owners["checkpoint"] = (newest, check_file)
    owners["best model"] = (run_dir / "best.safetensors", check_file)
    for kind, source in _make_sources(folder).items():
        owners[kind] = (source, _import_as(kind, folder / "out"))
    return {
        name: (
            path,
            read,
            [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()],
        )
        for name, (path, read) in owners.items()
    }


def _read_division(path: Path) -> None:
    graph = PartitionedGraph.open(path)
    servers = range(graph.book.servers)
    check_structure(path, servers)
    check_partition(graph, servers)
    check_rows(path, servers)


def _read_graph(path: Path) -> None:
    GraphDirectory.open(path, check="full")


def _read_config(path: Path) -> None:
    config = load_config(path)
    check_request(Request(config, open_graph(config)))


def _import_as(kind: str, out: Path) -> Read:
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


def _make_sources(folder: Path) -> dict[str, Path]:
    """Write a small graph in two formats."""
    rng, npy, csv = np.random.default_rng(1), folder / "npy", folder / "csv"
    npy.mkdir()
    arrays = {
        "edges": rng.integers(0, 50, (2, 300)), "feat": rng.random((50, 6), np.float32),
        "label": rng.integers(0, 3, 50), "train": np.arange(0, 50, 2),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(npy / f"{name}.npy", array)
    edges = {"src": "paper", "rel": "cites", "dst": "paper", "file": "edges.npy"}
    meta = {
        "name": "small", "node_types": {"paper": {"count": 50, "feat_file": "feat.npy"}},
        "edge_types": [edges], "target_type": "paper", "num_classes": 3,
        "labels": {"paper": "label.npy"}, "splits": {"train": {"file": "train.npy"}},
    }  # fmt: skip
    (npy / "meta.json").write_text(json.dumps(meta))
    csv.mkdir()
    lines = [f"{i},{i % 3},{'train' if i % 2 else 'val'},{i / 7}" for i in range(50)]
    (csv / "nodes.csv").write_text("\n".join(["id,label,split,x", *lines, ""]))
    ends = rng.integers(0, 50, (99, 2))
    (csv / "edges.csv").write_text("\n".join(["src,dst", *(f"{a},{b}" for a, b in ends), ""]))
    return {"npy": npy, "csv": csv}


def run_quietly(words: Sequence[str]) -> None:
    """Run a ``hopper`` command in this process. Raise RequestError with its output if it fails."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(list(words))
    if code:
        raise RequestError(f"hopper {' '.join(words)}: {output.getvalue().strip()}")
