"""A run on one machine is closed to the network, and nothing of it outlives what started it.

What is looked at is the running system: the sockets of its processes, and what they and the
libraries below them unpickle.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 60.0

# Python runs a module of this name when it starts.
AUDIT = """
import os
import sys

LOG = os.environ["UNPICKLED"]


def note(event, arguments):
    if event == "pickle.find_class":
        files, frame = [], sys._getframe()
        while frame := frame.f_back:
            files.append(frame.f_code.co_filename)
        # What numba makes and keeps itself, beside a module's own bytecode.
        if not any("/numba/core/" in file for file in files):
            with open(LOG, "a") as log:
                print(sys.argv, arguments, files, file=log)


sys.addaudithook(note)
"""


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    # gloo's sockets are of IPv6, bound to an address of IPv4.
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def commands(runs: Any, name: str, **train: Any) -> dict[str, list[str]]:
    """The two ways to a run on this machine."""
    config = str(runs.config(name, **train))
    script = str(REPOSITORY / "scripts" / "launch_local.sh")
    return {
        "hopper": [sys.executable, "-m", "hopper.cli", "train", config],
        "script": [script, config],
    }


@pytest.mark.parametrize("way", ["hopper", "script"])
def test_nothing_of_a_run_can_be_reached_from_another_host(runs: Any, way: str) -> None:
    name = f"reach-{way}"
    command = commands(runs, name, epochs=1_000_000, evaluate_every=0)[way]
    run = runs.start(command, name)
    run.await_epochs(1)
    processes = run.family()
    assert {process.pid for process in run.members()} <= {process.pid for process in processes}
    listening = set()
    for process in processes:
        # The script's shell looks at its children between short sleeps, which are processes too.
        with suppress(psutil.NoSuchProcess):
            sockets = process.net_connections("inet")
            own = (each for each in sockets if each.status == psutil.CONN_LISTEN)
            listening.update((process.pid, each.laddr) for each in own)
    # Two feature servers, the store, and what two ranks reach each other by.
    assert len({pid for pid, _ in listening}) >= 5
    outside = [(pid, address) for pid, address in listening if not is_loopback(address.ip)]
    assert not outside
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() != 0
    run.assert_nothing_remains(limit=5.0)


@pytest.mark.usefixtures("real_starts")
@pytest.mark.parametrize("way", ["hopper", "script"])
def test_nothing_that_a_run_reads_or_is_started_in_becomes_code(
    runs: Any, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launcher, torchrun's agent, feature servers and ranks, from start to end."""
    audit, folder = tmp_path / "audit", tmp_path / "folder"
    audit.mkdir()
    folder.mkdir()
    (audit / "sitecustomize.py").write_text(AUDIT)
    log = tmp_path / "unpickled"
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(audit), before))))
    monkeypatch.setenv("UNPICKLED", str(log))
    # The check itself: it sees what is unpickled.
    subprocess.run(
        [sys.executable, "-c", "import pickle; pickle.loads(pickle.dumps(print))"], check=True
    )
    assert "'print'" in log.read_text()
    log.unlink()
    # A folder that others may write to, with modules that every process of a run imports.
    for module in ("grpc", "torch", "hopper", "cache_server"):
        (folder / f"{module}.py").write_text("raise SystemExit('imported from the folder')")
    name = f"becomes-code-{way}"
    command = commands(runs, name, epochs=1)[way]
    if way == "hopper":
        command = [str(Path(sys.executable).with_name("hopper")), *command[3:]]
    run = runs.start(command, name, folder=folder)
    assert run.finish() == 0, run.stderr
    assert not log.exists(), log.read_text()


@pytest.mark.usefixtures("real_starts")
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "hopper.train", "nowhere.toml"],
        ["-m", "cache_server", "nowhere", "--server", "0", "--listen", "127.0.0.1:0"],
    ],
)
def test_a_child_whose_parent_has_ended_ends_at_once(words: list[str]) -> None:
    """It is told who its parent is; by the time that it could ask, that may be another."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    if "cache_server" in words:
        words = [*words, "--die-with-parent", str(gone.pid)]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | {"HOPPER_DIE_WITH_PARENT": str(gone.pid)},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"error: process {gone.pid}, which started this one, has ended\n"


@pytest.mark.usefixtures("real_starts")
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_killed_launcher_leaves_nothing(runs: Any, seconds: float) -> None:
    """Killed while its servers and ranks start."""
    name = f"orphans-{seconds}"
    command = commands(runs, name, epochs=1_000_000, evaluate_every=0)["hopper"]
    run = runs.start(command, name)
    run.await_condition(lambda: bool(run.members()), "a feature server")
    time.sleep(seconds)
    run.process.kill()
    run.process.wait()
    run.assert_nothing_remains(limit=10.0)


# Of a run that is interrupted; before the first the interpreter has not begun with it. At the later
# ones servers and ranks are in sessions of their own, which a terminal's Ctrl-C does not reach.
MOMENTS: dict[str, Callable[[Any], bool]] = {
    "importing": lambda run: b"libtorch" in Path(f"/proc/{run.process.pid}/maps").read_bytes(),
    "starting servers": lambda run: bool(run.members()),
    "starting ranks": lambda run: bool(run.ranks()),
    "training": lambda run: bool(run.epochs()),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_is_answered_in_a_line(
    runs: Any, moment: str, request: pytest.FixtureRequest
) -> None:
    """A terminal sends it to all processes in the foreground."""
    if moment in ("importing", "starting servers"):
        request.getfixturevalue("real_starts")
    name = f"ctrl-c-{moment.replace(' ', '-')}"
    command = commands(runs, name, epochs=1_000_000, evaluate_every=0)["hopper"]
    run = runs.start(command, name, start_new_session=True)
    run.await_condition(lambda: MOMENTS[moment](run), moment)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.finish() in (1, 130), run.stderr
    run.assert_nothing_remains()
    assert run.stderr in ("interrupted\n", "error: ended by SIGINT; ranks and servers were ended\n")


def test_a_launcher_that_is_told_to_end_ends_after_its_servers(runs: Any) -> None:
    name = "told-to-end-at-start"
    run = runs.train(name, epochs=1_000_000, evaluate_every=0)
    run.await_condition(lambda: MOMENTS["starting servers"](run), "a server")
    run.process.terminate()
    assert run.finish() == 1
    run.assert_nothing_remains()
    assert run.stderr == "error: ended by SIGTERM; ranks and servers were ended\n"
