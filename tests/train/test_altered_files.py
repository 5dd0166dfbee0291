"""Altered files of checkpoints and divisions are refused in one line."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cache_server.store.manifest import set_division
from hopper.cluster.cluster import Cluster
from hopper.errors import GraphError, HopperError, RequestError
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import (
    CHECKSUMS_FILE,
    check_partition,
    check_rows,
    check_structure,
    read_division,
    seal_directory,
)
from hopper.train import verify as verification
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import check_file
from hopper.train.verify import RowCheck
from tests.cache_server.test_store import drop_pages, in_memory

SERVERS = [0, 1]
FLIPS = 60


def flip_bit(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.fixture(scope="module")
def checkpointed_run(runs) -> Path:
    """The folder of a finished run with checkpoints."""
    return Path(runs.train_to_end("checkpointed", epochs=1, checkpoint_every=5).run_dir)


def test_no_bit_of_a_checkpoint_may_flip(checkpointed_run, tmp_path):
    original, draw = (checkpointed_run / "best.safetensors").read_bytes(), random.Random(3)
    size, file = len(original), tmp_path / "altered"
    file.write_bytes(original)
    check_file(file)
    altered = [original[: size - 1], original + b"\0", original[: size // 2], b"", original[:8]]
    # The first bits say how long the header is; then header, facts, data, and what pads them.
    for bit in [*range(0, 70, 9), *(draw.randrange(8 * size) for _ in range(FLIPS))]:
        place = bit // 8
        flipped = bytes([original[place] ^ 1 << bit % 8])
        altered.append(original[:place] + flipped + original[place + 1 :])
    for content in altered:
        file.write_bytes(content)
        with pytest.raises(RequestError, match="altered since it was written"):
            check_file(file)


def test_a_run_passes_over_an_altered_checkpoint(runs, checkpointed_run):
    """It resumes from the checkpoint before. If no checkpoint is whole it fails, or begins anew
    with ``resume = "auto"``."""
    folder = checkpointed_run.with_name("flipped")
    shutil.copytree(checkpointed_run, folder)
    files = CheckpointFiles(folder)
    newest, before = (files.model(step) for step in files.steps)

    def resume(how: str) -> Any:
        (folder / "summary.json").unlink(missing_ok=True)
        return runs.try_to_train("flipped", "--train.resume", how, epochs=2, checkpoint_every=5)

    flip_bit(newest, 8 * newest.stat().st_size - 100)
    resumed = resume("true")
    assert resumed.code == 0, resumed.stderr
    assert f"passed over: {newest}: altered since it was written" in resumed.stderr
    for step in files.steps:
        check_file(files.model(step))
    expected = resumed.losses()
    for step in files.steps:
        truncate(files.model(step))
    resumed = resume("true")
    assert resumed.code == 1
    assert "checkpoints: no whole checkpoint: " in resumed.stderr
    assert "Traceback" not in resumed.stderr
    restarted = resume("auto")
    assert restarted.code == 0, restarted.stderr
    assert "no checkpoint is whole, so training begins anew: " in restarted.stderr
    assert restarted.losses() == expected
    assert not before.exists()


@pytest.fixture
def copy(parts, tmp_path) -> Path:
    """A copy of the partitioned directory, which a test may alter."""
    return Path(shutil.copytree(parts, tmp_path / "copy"))


def verify(path: Path) -> None:
    """Make the checks of a whole run: those of its start and those of later reads."""
    check_structure(path, SERVERS)
    check_partition(PartitionedGraph.open(path), SERVERS)
    check_rows(path, SERVERS)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


ALTERATIONS: dict[str, Callable[[Path], object]] = {
    "first bit": lambda file: flip_bit(file, 0),
    "middle bit": lambda file: flip_bit(file, 4 * file.stat().st_size),
    "truncated": truncate,
    "extended": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "missing": Path.unlink,
    "pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "empty": lambda file: os.truncate(file, 0),
    "nested": lambda file: file.write_text("[" * 100_000),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_no_file_of_a_division_may_be_altered(parts, copy, name):
    for file in sorted(file for file in copy.rglob("*") if file.is_file()):
        ALTERATIONS[name](file)
        with pytest.raises(HopperError) as caught:
            verify(copy)
        assert "\n" not in str(caught.value)
        assert str(copy) in str(caught.value)
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
        shutil.copy2(parts / file.relative_to(copy), file)
    verify(copy)


def test_a_machine_needs_its_own_servers_rows_alone(copy):
    shutil.rmtree(copy / "server-1")
    check_structure(copy, [0])
    check_rows(copy, [0])
    with pytest.raises(GraphError, match=r"server-1.*: missing file"):
        check_structure(copy, [1])


def test_features_beyond_memory_are_checked_without_filling_the_page_cache(copy, monkeypatch):
    monkeypatch.setattr("cache_server.store.mapped_rows.available_memory", lambda: 0)
    file = next((copy / "server-0" / "features").rglob("*.npy"))
    table = np.load(file, mmap_mode="r")
    drop_pages(file, table)
    assert check_rows(copy, [0])
    assert not in_memory(table).any()


def test_a_run_that_has_ended_waits_for_no_slow_check(parts, monkeypatch):
    """At a byte a second the check would take hours."""
    monkeypatch.setattr(verification, "_BYTES_A_SECOND", 1.0)
    said: list[str] = []
    cluster = Cluster(0, 1, 1, torch.device("cpu"), 60.0)
    RowCheck("quick", parts, cluster).finish(said.append)
    assert not said

    def read_for_ever(_path: Path, _servers: list[int], go_on: Callable[[int], bool]) -> bool:
        while go_on(0):
            time.sleep(0.01)
        return False

    monkeypatch.setattr(verification, "check_rows", read_for_ever)
    cluster.timeout = 0.2
    RowCheck("quick", parts, cluster).finish(said.append)
    assert [line.partition(" were")[0] for line in said] == ["not all features of server 0"]


def swap(copy: Path) -> None:
    first, second = sorted((copy / "maps").rglob("*.npy"))[:2]
    contents = first.read_bytes(), second.read_bytes()
    for file, content in zip((second, first), contents, strict=True):
        file.write_bytes(content)


def set_id_out_of_range(copy: Path, array: str) -> None:
    """Kernels would read beyond the end of an array, though checksums fit."""
    [file] = copy.rglob(f"{array}.npy")
    values = np.load(file)
    values[len(values) // 2] = 10**9
    np.save(file, values)
    (copy / CHECKSUMS_FILE).unlink()
    seal_directory(copy)


@pytest.mark.parametrize(
    ("alter", "text"),
    [
        (swap, r"maps/.*altered since it was written"),
        (lambda copy: (copy / CHECKSUMS_FILE).unlink(), "divided by an older version"),
        *(
            (partial(set_id_out_of_range, array=array), rf"{array}.*expected")
            for array in ("indptr", "indices", "original_ids", "train")
        ),
    ],
)
def test_a_division_that_is_not_whole_is_refused(copy, alter, text):
    alter(copy)
    with pytest.raises(GraphError, match=text):
        verify(copy)


@pytest.mark.parametrize("way", ["structure", "quick", "full"])
def test_a_run_that_would_read_altered_files_fails(runs, copy, way):
    """It does not begin if files were altered that are read before, and else does not end well."""
    is_structure = way == "structure"
    folder, name = (copy, "indices.npy") if is_structure else (copy / "server-1/features", "*.npy")
    file = next(folder.rglob(name))
    flip_bit(file, 8 * 1000)
    words = (f"--data.partitioned={copy}", f"--data.verify={'quick' if is_structure else way}")
    run = runs.try_to_train(f"altered-{way}", *words, epochs=1)
    assert run.code == 1
    assert "Traceback" not in run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"error: {file}" if is_structure else "error: ")
    assert f"{file}: altered since it was written" in last
    assert not (run.run_dir / "summary.json").exists()
    assert run.run_dir.exists() == (way == "quick")


def test_servers_of_another_division_are_refused(runs, copy, serve_partitions):
    """Without the check they would serve wrong rows, because the shapes are the same."""
    expected = read_division(copy)
    for server in SERVERS:
        set_division(copy / f"server-{server}", "0123456789abcdef" * 2)
    addresses = json.dumps(serve_partitions(copy, 2))
    run = runs.try_to_train("elsewhere", "--cluster.servers", addresses, epochs=1)
    assert run.code == 1
    assert f"it serves the division {'0123456789abcdef' * 2}, expected {expected}" in run.stderr
    assert "Traceback" not in run.stderr
