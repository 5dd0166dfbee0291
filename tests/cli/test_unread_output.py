"""A command ends quietly when its reader goes before the output's end."""

import signal
import subprocess
import sys


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
