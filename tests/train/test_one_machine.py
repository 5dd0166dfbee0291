"""A run on one machine is closed to the network, and no process of it outlives its launcher.

The tests inspect the running processes: their sockets, their secrets, and what they and their
libraries unpickle.
"""

import ipaddress
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cache_server.test_security import issue
from tests.server_processes import run_python

LIMIT = 60.0
TOKEN = "nobody-else-knows-this-0123456789"

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


@pytest.fixture
def cluster_keys(tmp_path) -> dict[str, str]:
    """Keys of ``[cluster]`` that name certificates and a token."""
    issue(tmp_path, "own")
    (tmp_path / "token").write_text(TOKEN)
    files = {f"tls_{name}": f"own-{name}.pem" for name in ("ca", "certificate", "key")}
    return {key: str(tmp_path / file) for key, file in (files | {"token_file": "token"}).items()}


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    # gloo's sockets are of IPv6, bound to an address of IPv4.
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def test_a_run_is_closed_and_runs_no_foreign_code(
    runs, reference, cluster_keys, tmp_path, monkeypatch
):
    """Nothing can be reached from another host, nothing is unpickled, nothing is imported from the
    folder. With the same seed, losses and model have the same bits.

    Launcher, servers and ranks are audited from start to end. They use certificates and a token,
    which stays secret.
    """
    audit, folder = tmp_path / "audit", tmp_path / "folder"
    audit.mkdir()
    folder.mkdir()
    (audit / "sitecustomize.py").write_text(AUDIT)
    log = tmp_path / "unpickled"
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(audit), before))))
    monkeypatch.setenv("UNPICKLED", str(log))
    # The audit itself works: it sees what is unpickled.
    run_python("-c", "import pickle; pickle.loads(pickle.dumps(print))").check_returncode()
    assert "'print'" in log.read_text()
    log.unlink()
    # A folder that others may write to, with modules that every process of a run imports.
    for module in ("grpc", "torch", "hopper", "cache_server"):
        (folder / f"{module}.py").write_text("raise SystemExit('imported from the folder')")
    waiting = {"loggers": ["own_callbacks:Witness"], "loggers_options": [{"wait_after": 0}]}
    keys = [f"--cluster.{key}={value}" for key, value in cluster_keys.items()]
    program = str(Path(sys.executable).with_name("hopper"))
    command = [program, "train", str(runs.config("closed", **waiting)), *keys]
    run = runs.start(command, "closed", folder=folder)
    run.await_epochs(1)
    launcher = psutil.Process(run.process.pid)
    processes = [launcher, *launcher.children(recursive=True)]
    assert {process.pid for process in run.members()} <= {process.pid for process in processes}
    listening, visible = set(), ""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            visible += " ".join([*process.cmdline(), *process.environ().values()])
            listening.update(
                (process.pid, connection.laddr)
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            )
    (run.run_dir / "go-on").touch()
    # Two feature servers, the store, and what two ranks reach each other by.
    assert len({pid for pid, _ in listening}) >= 5
    assert [address for _, address in listening if not is_loopback(address.ip)] == []
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    assert not log.exists(), log.read_text()
    assert run.losses() == reference.losses()
    assert run.best_model == reference.best_model
    files = [path.read_bytes() for path in run.run_dir.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert TOKEN not in visible + run.stdout + run.stderr
    assert not any(TOKEN.encode() in content for content in files)


def test_a_rank_whose_parent_has_ended_ends_at_once():
    """A rank is given the id of its parent. If the parent has ended, the rank must not run on."""
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    words = "-m", "hopper.train", "nowhere.toml"
    child = run_python(*words, HOPPER_DIE_WITH_PARENT=str(parent.pid), limit=LIMIT)
    assert child.returncode == 1
    assert child.stderr == f"error: process {parent.pid}, which started this one, has ended\n"


def test_a_killed_launcher_leaves_nothing(runs):
    """It is killed while its servers and ranks start."""
    run = runs.train("orphans", epochs=1_000_000, evaluate_every=0)
    run.await_condition(lambda: bool(run.members()), "a feature server")
    run.process.kill()
    run.process.wait()
    run.assert_nothing_remains(limit=10.0)


# When a run is interrupted. At the later moment servers and ranks are in sessions of their own,
# which Ctrl-C in a terminal does not reach.
MOMENTS: dict[str, Callable[[Any], bool]] = {
    "importing": lambda run: b"libtorch" in Path(f"/proc/{run.process.pid}/maps").read_bytes(),
    "starting ranks": lambda run: bool(run.ranks()),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_run_ends_with_one_line(runs, moment):
    """A terminal sends SIGINT to all processes in the foreground."""
    name = f"interrupted-{moment.replace(' ', '-')}"
    run = runs.train(name, epochs=1_000_000, evaluate_every=0, start_new_session=True)
    run.await_condition(lambda: MOMENTS[moment](run), moment)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.finish() == 130, run.stderr
    run.assert_nothing_remains()
    ended = "error: ended by SIGINT; ranks and servers were ended\n"
    assert run.stderr in (("interrupted\n", ended) if moment == "importing" else (ended,))
