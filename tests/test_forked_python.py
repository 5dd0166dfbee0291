"""The interpreter that tests run in place of Python: it must run scripts as Python does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import os, sys, threading
given = os.environ["GIVEN"]
print(sys.argv[1:], os.getcwd(), given, sys.stdin.read(), sys.path[0], file=sys.stderr)
print(__name__, "torch" in sys.modules)
threading.Thread(target=lambda: print("a thread's end")).start()
sys.exit(3 if sys.argv[1] == "three" else sys.argv[1])
"""
ENDLESS = """
import time
from pathlib import Path
import os, sys
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def test_arguments_streams_folder_and_exit_code_are_those_of_python(
    forked_python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for flags, word, code, message in (
        ([], "three", 3, ""),
        (["-u"], "what was wrong", 1, "what was wrong\n"),
    ):
        process = subprocess.run(
            [forked_python, *flags, str(script), word],
            input="from stdin",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"GIVEN": "from outside", "OMP_NUM_THREADS": "1"},
            timeout=60,
        )
        assert process.returncode == code
        assert process.stdout == "__main__ True\na thread's end\n"
        assert (
            process.stderr == f"{[word]} {tmp_path} from outside from stdin {tmp_path}\n{message}"
        )


def test_a_client_that_asks_for_nothing_keeps_nobody_waiting(
    forked_python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print('torch' in sys.modules)")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(forked_python.with_name("socket")))
        process = subprocess.run(
            [forked_python, str(script)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=60,
        )
    assert process.stdout == "True\n"


@pytest.mark.parametrize("words", [("-c", "%s"), ("-P", "-c", "%s")])
def test_commands_other_than_scripts_start_python(
    forked_python: Path, words: tuple[str, ...]
) -> None:
    text = "import sys; print(sys.executable, 'torch' in sys.modules)"
    command = [forked_python, *(word.replace("%s", text) for word in words)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == f"{sys.executable} False\n"


def test_another_number_of_threads_starts_python(forked_python: Path, tmp_path: Path) -> None:
    """OpenMP reads the number of threads once, so a copy cannot have another one."""
    script = tmp_path / "script.py"
    script.write_text("import sys; print('torch' in sys.modules)")
    for threads in ("1", "2"):
        process = subprocess.run(
            [forked_python, str(script)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": threads},
            timeout=60,
        )
        assert process.stdout == f"{threads == '1'}\n"


def test_a_copy_runs_in_the_namespaces_of_its_client(forked_python: Path, tmp_path: Path) -> None:
    """The network and the mounts of a copy are those of the process that asked for it."""
    unshare = ["unshare", "--net", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    script = tmp_path / "script.py"
    script_text = "import os, sys; print('torch' in sys.modules, os.getcwd(), flush=True)\n"
    script_text += "os.execvp('readlink', ['readlink', '/proc/self/ns/net', '/proc/self/ns/mnt'])"
    script.write_text(script_text)
    show_and_start = 'readlink /proc/self/ns/net /proc/self/ns/mnt; exec "$@"'
    process = subprocess.run(
        [*unshare, "sh", "-c", show_and_start, "sh", forked_python, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=60,
    )
    *outer_namespaces, copy_state, network, mounts = process.stdout.splitlines()
    assert copy_state == f"True {tmp_path}"
    assert [network, mounts] == outer_namespaces
    assert os.readlink("/proc/self/ns/net") != network


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT"])
def test_a_signal_ends_client_and_copy(forked_python: Path, tmp_path: Path, name: str) -> None:
    script, file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(ENDLESS)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [forked_python, str(script), str(file)], env=environment, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    copy = psutil.Process(int(file.read_text()))
    assert copy.pid != process.pid
    process.send_signal(signal.Signals[name])
    assert process.wait(30) == -signal.Signals[name]
    psutil.wait_procs([copy], timeout=30)
    assert not copy.is_running()


def test_a_copy_ends_with_the_parent_of_its_client(forked_python: Path, tmp_path: Path) -> None:
    """A rank ends in this way if its launcher is killed."""
    script, file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(ENDLESS)
    start_copy = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(sys.argv[1:], env=os.environ | {'HOPPER_DIE_WITH_PARENT': "
        "str(os.getpid())})\n"
        "time.sleep(600)"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", start_copy, str(forked_python), str(script), str(file)],
        env=environment,
    )
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    copy = psutil.Process(int(file.read_text()))
    parent.kill()
    parent.wait()
    psutil.wait_procs([copy], timeout=30)
    assert not copy.is_running()
