"""The interpreter that tests run in place of Python: what it runs is as Python would run it."""

from __future__ import annotations

import os
import signal
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


def test_words_files_folder_and_end_are_those_given(forked_python: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for flags, word, code, told in (
        ([], "three", 3, ""),
        (["-u"], "what was wrong", 1, "what was wrong\n"),
    ):
        done = subprocess.run(
            [forked_python, *flags, str(script), word],
            input="from stdin",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"GIVEN": "from outside", "OMP_NUM_THREADS": "1"},
            timeout=60,
        )
        assert done.returncode == code
        assert done.stdout == "__main__ True\na thread's end\n"
        assert done.stderr == f"{[word]} {tmp_path} from outside from stdin {tmp_path}\n{told}"


@pytest.mark.parametrize("words", [("-c", "%s"), ("-P", "-c", "%s")])
def test_what_is_no_copy_is_python(forked_python: Path, words: tuple[str, ...]) -> None:
    text = "import sys; print(sys.executable, 'torch' in sys.modules)"
    command = [forked_python, *(word.replace("%s", text) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{sys.executable} False\n"


def test_other_threads_are_those_of_a_new_process(forked_python: Path, tmp_path: Path) -> None:
    """What OpenMP reads at its start, a copy has read."""
    script = tmp_path / "script.py"
    script.write_text("import sys; print('torch' in sys.modules)")
    for threads in ("1", "2"):
        done = subprocess.run(
            [forked_python, str(script)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": threads},
            timeout=60,
        )
        assert done.stdout == f"{threads == '1'}\n"


def test_a_copy_is_where_it_was_asked_for(forked_python: Path, tmp_path: Path) -> None:
    """In the network and among the mounts of whoever asked."""
    apart = ["unshare", "--net", "--mount"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    script = tmp_path / "script.py"
    told = "import os, sys; print('torch' in sys.modules, os.getcwd(), flush=True)\n"
    told += "os.execvp('readlink', ['readlink', '/proc/self/ns/net', '/proc/self/ns/mnt'])"
    script.write_text(told)
    both = 'readlink /proc/self/ns/net /proc/self/ns/mnt; exec "$@"'
    done = subprocess.run(
        [*apart, "sh", "-c", both, "sh", forked_python, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=60,
    )
    *around, copied, network, mounts = done.stdout.splitlines()
    assert copied == f"True {tmp_path}"
    assert [network, mounts] == around
    assert os.readlink("/proc/self/ns/net") != network


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT"])
def test_a_signal_ends_both(forked_python: Path, tmp_path: Path, name: str) -> None:
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


def test_a_copy_ends_with_the_process_that_asked(forked_python: Path, tmp_path: Path) -> None:
    """As a rank does whose launcher is gone."""
    script, file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(ENDLESS)
    start = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(sys.argv[1:], env=os.environ | {'HOPPER_DIE_WITH_PARENT': "
        "str(os.getpid())})\n"
        "time.sleep(600)"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", start, str(forked_python), str(script), str(file)], env=environment
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
