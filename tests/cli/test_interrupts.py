"""Signals are answered by one line, whatever a command is doing, and nothing is left of it. A
command whose reader goes ends in silence."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_processes import run_python

# The process gets a signal at the moment at which it begins to import a module.
AT_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(sys.argv[2]))

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from hopper.cli import main
sys.exit(main(sys.argv[3:]))
"""
# It gets one that Python drops, as it does with errors while an object is destroyed.
DROPPED = """
import signal, sys, time
from hopper import cli

class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run(argv, arrived):
    Dropped()
    time.sleep(30)

signal.signal(signal.SIGINT, signal.default_int_handler)
cli._run = run
sys.exit(cli.main([]))
"""


@pytest.fixture(scope="module")
def folder(community_graph, parts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "graph").symlink_to(community_graph.path)
    (folder / "parts").symlink_to(parts)
    (folder / "c.toml").write_text('[data]\npartitioned = "parts"\n[train]\nbatch_size = 8\n')
    return folder


def run_script(folder: Path, *words: str) -> tuple[int, str, str]:
    done = run_python("-c", *words, folder=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("argparse", "--help"),
        ("pydantic", "config explain"),
        ("torch", "doctor c.toml"),
        ("torch.nn", "train c.toml"),
        ("numba", "inspect schedule c.toml"),
        ("hopper.predict.launch", "predict run --out o"),
    ],
)
def test_an_interrupted_command_prints_one_line_and_writes_nothing(folder, module, command):
    before = sorted(folder.iterdir())
    words = (module, str(int(signal.SIGINT)), *command.split())
    code, _, printed_errors = run_script(folder, AT_IMPORT, *words)
    assert (code, printed_errors) == (130, "interrupted\n")
    assert sorted(folder.iterdir()) == before


def test_an_interrupt_that_python_drops_is_sent_again(folder):
    assert run_script(folder, DROPPED) == (130, "", "interrupted\n")


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_files_are_written_leaves_none(folder, kind):
    before = sorted(folder.iterdir())
    command = "partition graph --servers 2 --method random --out o"
    # It is imported to measure what has been written.
    words = ("hopper.micrograph.locality", str(int(kind)), *command.split())
    code, _, printed_errors = run_script(folder, AT_IMPORT, *words)
    text = "interrupted" if kind == signal.SIGINT else f"ended by {kind.name}"
    assert (code, printed_errors.splitlines()[-1]) == (128 + kind, text)
    assert "Traceback" not in printed_errors
    assert sorted(folder.iterdir()) == before


# A library turns the exception of a signal into one of its own.
TURNED = """
import signal, sys
from hopper import cli
from hopper.errors import GraphError

def run(options):
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException as error:
        raise GraphError(f"edges.csv: {error}")

sys.argv[1:] = ["inspect", "graph", "graph"]
import hopper.cli.inspect.graph
hopper.cli.inspect.graph._run = run
sys.exit(cli.main())
"""


def test_a_signal_that_a_library_takes_for_an_error_is_told(folder):
    assert run_script(folder, TURNED) == (143, "", "ended by SIGTERM\n")


def test_a_reader_that_goes_ends_a_command_in_silence():
    command = [sys.executable, "-m", "hopper.cli", "config", "explain"]
    # A pipe that holds less than the command writes: it cannot have ended before its reader goes.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 128 + signal.SIGPIPE
