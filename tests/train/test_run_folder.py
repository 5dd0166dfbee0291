"""A run folder belongs to one run. A folder that cannot be used is refused in one line."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.train.run_lock import lock_run_folder

IS_ROOT = os.geteuid() == 0


def test_a_folder_belongs_to_one_run_which_ends_when_it_is_moved_away(runs, capsys):
    first = runs.train("shared", epochs=1_000_000, evaluate_every=0, checkpoint_every=1)
    first.await_epochs(2)
    config = runs.config("shared", epochs=2)
    assert main(["train", str(config), "--train.seed", "7"]) == 1
    assert capsys.readouterr().err == (
        f"error: train.run_dir: {first.run_dir} is in use by another run (process "
        f"{first.process.pid} on {os.uname().nodename}); name another folder, or end that "
        "run first\n"
    )
    first.await_epochs(len(first.epochs()) + 2)
    # The second run wrote nothing.
    epochs = first.epochs()
    assert [epoch["epoch"] for epoch in epochs] == list(range(len(epochs)))
    moved = first.run_dir.rename(first.run_dir.with_name("shared-away"))
    assert first.finish() == 1
    first.assert_nothing_remains()
    assert f"train.run_dir: {first.run_dir}: was moved or removed during" in first.stderr
    assert "Traceback" not in first.stderr
    assert first.stderr.splitlines()[-1].startswith("error: ")
    with lock_run_folder(moved, "launcher"):
        pass


@pytest.mark.parametrize("holder", ["launcher", "rank-0"])
def test_a_launcher_respects_locks_of_launchers_and_of_ranks(tmp_path, holder):
    """Ranks that torchrun started have no launcher, so rank 0 holds the lock."""
    message = f"in use by another run .process {os.getpid()}"
    with lock_run_folder(tmp_path, holder), pytest.raises(RequestError, match=message):
        lock_run_folder(tmp_path, "launcher").__enter__()
    with lock_run_folder(tmp_path, "launcher"), lock_run_folder(tmp_path, "rank-0"):
        pass


def test_a_killed_run_leaves_its_folder_free(tmp_path):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from hopper.train.run_lock import lock_run_folder\n"
        "with lock_run_folder(Path(sys.argv[1]), 'launcher'):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RequestError, match=str(process.pid)):
            lock_run_folder(tmp_path, "launcher").__enter__()
        process.kill()
    with lock_run_folder(tmp_path, "launcher"):
        pass


def test_a_folder_that_cannot_be_used_is_refused(runs, tmp_path, capsys):
    config = str(runs.config("unusable"))
    (tmp_path / "file").write_text("")
    cases = {
        "file": "File exists",
        "file/below": "Not a directory",
        "x" * 300: "File name too long",
    }
    if not IS_ROOT:
        (tmp_path / "locked").mkdir(mode=0o500)
        cases["locked/below"] = "Permission denied"
    for name, reason in cases.items():
        assert main(["train", config, "--train.run_dir", str(tmp_path / name)]) == 1
        error = capsys.readouterr().err
        start = f"error: train.run_dir: {tmp_path / name}: cannot be made: {reason}"
        assert error.startswith(start)
        assert error.count("\n") == 1


def test_a_disk_that_fills_up_ends_the_run_with_one_line(runs, small_disk):
    config = runs.config("full", epochs=1_000_000, evaluate_every=0, checkpoint_every=3)
    folder = small_disk / "run"
    run = runs.call("full", "train", str(config), "--train.run_dir", str(folder))
    assert run.code == 1
    assert "Traceback" not in run.stderr
    assert re.search("^error: rank .*: No space left on device$", run.stderr, re.MULTILINE)
    # Earlier files are intact, and no half-written file is left.
    assert not list(folder.rglob("*.unfinished"))
    json.loads((folder / "config.json").read_text())
    for line in (folder / "epochs.jsonl").read_text().rpartition("\n")[0].splitlines():
        json.loads(line)


def test_half_written_files_of_a_killed_run_are_removed(runs):
    run_dir = Path(json.loads(runs.config("left").read_text())["train"]["run_dir"])
    (run_dir / "checkpoints").mkdir(parents=True)
    for name in ("checkpoints/step-3.safetensors.unfinished", "summary.json.unfinished"):
        (run_dir / name).touch()
    runs.train_to_end("left", epochs=1)
    assert not list(run_dir.rglob("*.unfinished"))


@pytest.mark.parametrize("free", [0, 16384])
def test_a_disk_that_is_full_at_the_start_is_reported_in_one_line(runs, small_disk, free):
    size = shutil.disk_usage(small_disk).free - free
    (small_disk / "ballast").write_bytes(bytes(size))
    run = runs.try_to_train("full-start", "--train.run_dir", str(small_disk / "run"))
    assert run.code == 1
    assert "Traceback" not in run.stderr
    assert "\nerror: " in f"\n{run.stderr}"
    assert re.search("No space left on device|has 0 bytes of free space", run.stderr)
