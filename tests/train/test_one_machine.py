"""A run on one machine is closed to the network, and no process of it outlives its launcher.

The tests inspect the running processes: their sockets, and what they and their libraries unpickle.
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
        # Leave out the kernels that numba caches itself.
        if not any("/numba/core/" in file for file in files):
            with open(LOG, "a") as log:
                print(sys.argv, arguments, files, file=log)


sys.addaudithook(note)
"""


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    # gloo's sockets are of IPv6, bound to an address of IPv4.
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def launch_commands(runs: Any, name: str, **train: Any) -> dict[str, list[str]]:
    """The two commands that start a run on this machine."""
    config = str(runs.config(name, **train))
    script = str(REPOSITORY / "scripts" / "launch_local.sh")
    return {
        "hopper": [sys.executable, "-m", "hopper.cli", "train", config],
        "script": [script, config],
    }


@pytest.mark.parametrize("way", ["hopper", "script"])
def test_nothing_of_a_run_can_be_reached_from_another_host(runs: Any, way: str) -> None:
    name = f"reach-{way}"
    command = launch_commands(runs, name, epochs=1_000_000, evaluate_every=0)[way]
    run = runs.start(command, name)
    run.await_epochs(1)
    processes = run.family()
    assert {process.pid for process in run.members()} <= {process.pid for process in processes}
    listening = set()
    for process in processes:
        # The script's shell looks at its children between short sleeps, which are processes too.
        with suppress(psutil.NoSuchProcess):
            connections = process.net_connections("inet")
            listeners = (
                connection for connection in connections if connection.status == psutil.CONN_LISTEN
            )
            listening.update((process.pid, connection.laddr) for connection in listeners)
    # Two feature servers, the store, and what two ranks reach each other by.
    assert len({pid for pid, _ in listening}) >= 5
    outside = [(pid, address) for pid, address in listening if not is_loopback(address.ip)]
    assert not outside
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() != 0
    run.assert_nothing_remains(limit=5.0)


@pytest.mark.parametrize("way", ["hopper", "script"])
def test_a_run_unpickles_nothing_and_imports_nothing_from_its_folder(
    runs: Any, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launcher, torchrun's agent, servers and ranks are audited from start to end."""
    audit, folder = tmp_path / "audit", tmp_path / "folder"
    audit.mkdir()
    folder.mkdir()
    (audit / "sitecustomize.py").write_text(AUDIT)
    log = tmp_path / "unpickled"
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(audit), before))))
    monkeypatch.setenv("UNPICKLED", str(log))
    # The audit itself works: it sees what is unpickled.
    subprocess.run(
        [sys.executable, "-c", "import pickle; pickle.loads(pickle.dumps(print))"], check=True
    )
    assert "'print'" in log.read_text()
    log.unlink()
    # A folder that others may write to, with modules that every process of a run imports.
    for module in ("grpc", "torch", "hopper", "cache_server"):
        (folder / f"{module}.py").write_text("raise SystemExit('imported from the folder')")
    name = f"becomes-code-{way}"
    command = launch_commands(runs, name, epochs=1)[way]
    if way == "hopper":
        command = [str(Path(sys.executable).with_name("hopper")), *command[3:]]
    run = runs.start(command, name, folder=folder)
    assert run.finish() == 0, run.stderr
    assert not log.exists(), log.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "hopper.train", "nowhere.toml"],
        ["-m", "cache_server", "nowhere", "--server", "0", "--listen", "127.0.0.1:0"],
    ],
)
def test_a_child_whose_parent_has_ended_ends_at_once(words: list[str]) -> None:
    """A child is given the id of its parent. If the parent has ended, the child must not run on."""
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    if "cache_server" in words:
        words = [*words, "--die-with-parent", str(parent.pid)]
    child = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | {"HOPPER_DIE_WITH_PARENT": str(parent.pid)},
        check=False,
    )
    assert child.returncode == 1
    assert child.stderr == f"error: process {parent.pid}, which started this one, has ended\n"


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_killed_launcher_leaves_nothing(runs: Any, seconds: float) -> None:
    """It is killed while its servers and ranks start."""
    name = f"orphans-{seconds}"
    command = launch_commands(runs, name, epochs=1_000_000, evaluate_every=0)["hopper"]
    run = runs.start(command, name)
    run.await_condition(lambda: bool(run.members()), "a feature server")
    time.sleep(seconds)
    run.process.kill()
    run.process.wait()
    run.assert_nothing_remains(limit=10.0)


# When a run is interrupted. At the later moments servers and ranks are in sessions of their own,
# which Ctrl-C in a terminal does not reach.
MOMENTS: dict[str, Callable[[Any], bool]] = {
    "importing": lambda run: b"libtorch" in Path(f"/proc/{run.process.pid}/maps").read_bytes(),
    "starting servers": lambda run: bool(run.members()),
    "starting ranks": lambda run: bool(run.ranks()),
    "training": lambda run: bool(run.epochs()),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_a_run_with_one_line(runs: Any, moment: str) -> None:
    """A terminal sends the signal to all processes in the foreground."""
    name = f"ctrl-c-{moment.replace(' ', '-')}"
    command = launch_commands(runs, name, epochs=1_000_000, evaluate_every=0)["hopper"]
    run = runs.start(command, name, start_new_session=True)
    run.await_condition(lambda: MOMENTS[moment](run), moment)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.finish() == 130, run.stderr
    run.assert_nothing_remains()
    assert run.stderr in ("interrupted\n", "error: ended by SIGINT; ranks and servers were ended\n")


def test_sigterm_during_the_start_ends_servers_and_launcher(runs: Any) -> None:
    name = "told-to-end-at-start"
    run = runs.train(name, epochs=1_000_000, evaluate_every=0)
    run.await_condition(lambda: MOMENTS["starting servers"](run), "a server")
    run.process.terminate()
    assert run.finish() == 143
    run.assert_nothing_remains()
    assert run.stderr == "error: ended by SIGTERM; ranks and servers were ended\n"
