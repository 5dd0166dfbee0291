"""Ranks that run one job after another, as rank_pool.py tells them; not a test by itself.

usage: standing_rank.py PARENT SOCKET, a process id and a descriptor. This process imports what
ranks need, and forks one for each descriptor that comes through the socket, which it answers with
the rank's process id. A process id is answered with that rank's exit code, once it has ended. The
name of a module that later ranks need is answered with 0, once it is imported.

What a rank reads from its descriptor are lines, each a job: a dictionary in JSON with the ``words``
that would follow ``python``, the ``environment``, the working ``folder``, and the files ``stdout``
and ``stderr``. It writes a line with the job's exit code. A job runs as in a new interpreter, which
gets the default state of torch, the environment and the modules of tests; what libraries and Hopper
keep for a process (kernels, imported modules) stays.
"""

import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from cache_server.process import end_with_parent
from hopper.process.quick_imports import quick_imports

with quick_imports():
    import numba
    import numpy as np
    import torch

    import hopper.train.rank  # noqa: F401
    from cache_server.events import events
    from hopper.train.rank_process import output

LIBRARIES = tuple(str(Path(file).parent) for file in (os.__file__, numba.__path__[0]))
OWN_PACKAGES = ("hopper", "cache_server", "benchmarks")


def main(parent: int, requests: socket.socket) -> None:
    """Fork ranks until the other end of the socket is closed."""
    end_with_parent(parent, signal.SIGKILL)
    # Ctrl-C ends the tests, and these processes with them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 64, 1)
        if not message:
            return
        if not descriptors and message.isdigit():
            answer = os.waitstatus_to_exitcode(os.waitpid(int(message), 0)[1])
        elif not descriptors:
            with quick_imports():
                importlib.import_module(message.decode())
            answer = 0
        else:
            this = os.getpid()
            answer = os.fork()
            if not answer:
                requests.close()
                end_with_parent(this, signal.SIGKILL)
                with suppress(BrokenPipeError):
                    run_jobs(socket.socket(fileno=descriptors[0]))
                # Nothing is to be taken apart in good order.
                os._exit(0)
            os.close(descriptors[0])
        requests.send(str(answer).encode())


def run_jobs(connection: socket.socket) -> None:
    """Run jobs until the other end of a connection is closed."""
    jobs = connection.makefile("rw")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Whoever waits for too long asks what the threads do, before killing this process.
    faulthandler.register(signal.SIGUSR1)
    # All forks would draw the same numbers.
    np.random.seed()
    default = State()
    for line in iter(jobs.readline, ""):
        job = json.loads(line)
        code = run(**job)
        default.restore()
        print(code, file=jobs, flush=True)


def run(
    words: list[str], environment: dict[str, str], folder: str, stdout: str, stderr: str
) -> int:
    """Do what ``python`` does with the words; returns the exit code."""
    for file, target in ((stdout, 1), (stderr, 2)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    code = 0
    try:
        # Entering it also lets warnings appear again that an earlier job has shown.
        with warnings.catch_warnings():
            if words[0] == "-m":
                sys.argv = words[1:]
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = words
                sys.path.insert(0, str(Path(words[0]).parent))
                runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    if torch.distributed.is_initialized() and not code:
        print("the job left its process group behind", file=sys.stderr)
        code = 1
    sys.__stdout__.flush()
    sys.__stderr__.flush()
    return code


class State:
    """What a job may change of this process, as it is now."""

    def __init__(self) -> None:
        self._path, self._argv = list(sys.path), list(sys.argv)
        self._environment = dict(os.environ)
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        """Undo all changes."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        sys.path[:], sys.argv[:] = self._path, self._argv
        os.environ.clear()
        os.environ.update(self._environment)
        # numba launches its threads at the first call, and changes OpenMP's number of them.
        numba.set_num_threads(1)
        torch.set_num_threads(1)
        torch.set_deterministic_debug_mode("default")
        torch.set_default_dtype(torch.float32)
        torch.set_rng_state(self._random)
        events.set_format("text")
        output.forget()
        forget_modules_of_tests()
        gc.collect()


def forget_modules_of_tests() -> None:
    """Let the next job import its own module of a name that this job's module has."""
    for name, module in list(sys.modules.items()):
        file: Any = getattr(module, "__file__", None)
        if (
            file
            and name != "__main__"
            and name.partition(".")[0] not in OWN_PACKAGES
            and not file.startswith(LIBRARIES)
        ):
            del sys.modules[name]


if __name__ == "__main__":
    main(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
