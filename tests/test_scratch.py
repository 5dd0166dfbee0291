"""Temporary folders, and their removal after a process was killed."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hopper.files.scratch import remove_abandoned, scratch_folder

HOLDER = """
import pathlib, sys, time
from hopper.files.scratch import scratch_folder
with scratch_folder("work-", pathlib.Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_is_removed_after_use(tmp_path):
    with scratch_folder("work-", tmp_path) as folder:
        (folder / "file").write_text("half")
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_folder_is_removed_after_an_error(tmp_path):
    with pytest.raises(ValueError, match="as it is"), scratch_folder("work-", tmp_path):
        raise ValueError("as it is")
    assert not list(tmp_path.iterdir())


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_stay(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder_folder = Path(holder.stdout.readline().strip())
        with scratch_folder("work-", tmp_path) as folder:
            assert holder_folder.exists()
            assert folder != holder_folder
        holder.kill()
        assert holder.wait(10) == -signal.SIGKILL
    assert (holder_folder / "file").exists(), "a killed process removes nothing"
    with scratch_folder("work-", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_another_process_is_about_to_remove_is_not_used(tmp_path, monkeypatch):
    make, taken = tempfile.mkdtemp, list[tuple[str, int]]()

    def make_and_take(**words: Any) -> str:
        folder = make(**words)
        if not taken:
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken.append((folder, descriptor))
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_take)
    with scratch_folder("work-", tmp_path) as folder:
        assert str(folder) != taken[0][0]
    os.close(taken[0][1])


def test_only_folders_with_names_of_scratch_folders_are_removed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "work-abcdefgh").symlink_to(elsewhere)
    (parent / "work-01234567").write_text("a file")
    for name in ("work-mine", "work-ABCDEFGH", "other-abcdefgh", "workabcdefgh"):
        (parent / name).mkdir()
    before = sorted(parent.iterdir())
    remove_abandoned("work-", parent)
    assert sorted(parent.iterdir()) == before
    assert elsewhere.exists()
