"""An interpreter that has imported already: every process that it starts is a copy of one.

Importing torch, numba and what comes with them is nearly all that a rank or a launcher costs in a
test. Given to tests in place of ``sys.executable``, it runs what Python would run (``-P -m MODULE``
or a script, also with ``-u``), in a process with the environment, the folder, the files and the end
of that one.

usage: forked_python.py ADDRESS PARENT; not a test by itself. Serves forked_python_client.py at the
socket ADDRESS until the process PARENT ends.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from forked_python_client import DIE_WITH_PARENT, FLAGS, FOLLOWER_NAME, surroundings

from cache_server.parent import end_with_parent
from hopper.quick_imports import quick_imports

with quick_imports():
    # What launchers, ranks and feature servers import, the first backward pass and the first
    # request included; nothing of it starts a thread.
    import grpc._channel  # noqa: F401
    import torch.fx.experimental.symbolic_shapes  # noqa: F401
    from numba.core.registry import cpu_target

    from kept_kernels import KeptKernels  # isort: skip

    import cache_server.__main__
    import cache_server.server  # noqa: F401
    import hopper.bench.emulate.waiting_rank
    import hopper.cli.partition_run
    import hopper.hetero.metatree
    import hopper.partition.metis
    import hopper.predict.launch
    import hopper.predict.rank
    import hopper.train.launch
    import hopper.train.machine_agent
    import hopper.train.rank_main  # noqa: F401
    from hopper.cli.commands import build_parser

    # Imports what all commands have.
    build_parser()
    # What numba reads before its first kernel.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()

STANDARD_FILES = 3
PR_SET_NAME = 15
OWN = os.environ.get("PYTHONPATH", "").split(os.pathsep)
LIBRARY = [folder for folder in sys.path[1:] if folder not in OWN]


def main(address: str, parent: int) -> None:
    """Serve; returns in every copy, which is then what was asked for."""
    end_with_parent(parent)
    server, kernels = os.getpid(), KeptKernels()
    kernels.load()
    with socket.socket(socket.AF_UNIX) as listener:
        Path(address + ".json").write_text(json.dumps(surroundings()))
        listener.bind(address)
        listener.listen(64)
        while True:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            connection, _ = listener.accept()
            kernels.load()
            with connection:
                if not os.fork():
                    listener.close()
                    end_with_parent(server)
                    if follow(connection):
                        return


def follow(connection: socket.socket) -> bool:
    """Start a copy and end with it, or it with its client; true in the copy itself."""
    size, files, _, _ = socket.recv_fds(connection, 4, STANDARD_FILES)
    with connection.makefile("rb") as stream:
        asked = json.loads(stream.read(struct.unpack("<i", size)[0]))
    follower = os.getpid()
    process = os.fork()
    if not process:
        connection.close()
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        become(asked, follower)
        return True
    name_after(asked["process"])
    for file in files:
        os.close(file)
    ended = os.pidfd_open(process)
    while ended not in select.select([ended, connection], [], [])[0]:
        told = connection.recv(1)
        os.kill(process, told[0] if told else signal.SIGKILL)
        if not told:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with suppress(OSError):
        connection.sendall(struct.pack("<i", code))
    os._exit(0)


def enter_host(process: int) -> None:
    """Go where a process is: its control groups, its network and its mounts."""
    groups = {
        line: Path("/sys/fs/cgroup", name.removeprefix("name="), group.lstrip("/"))
        for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()
        for _, name, group in [line.split(":", 2)]
    }
    own = Path("/proc/self/cgroup").read_text().splitlines()
    for line in groups.keys() - set(own):
        (groups[line] / "cgroup.procs").write_text("0")
    spaces = [
        os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
        for kind in ("net", "mnt")
        if os.readlink(f"/proc/{process}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    ]
    for space in spaces:
        if ctypes.CDLL(None, use_errno=True).setns(space, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(space)


def become(asked: dict[str, Any], follower: int) -> None:
    """Take over what a new interpreter would have."""
    enter_host(asked["process"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = list(asked["words"])
    # The client ends with its own parent, and so does what is told to, whose parent is this one.
    end_with_parent(follower)
    if parent := os.environ.get("HOPPER_DIE_WITH_PARENT"):
        own = parent == str(asked["process"])
        os.environ["HOPPER_DIE_WITH_PARENT"] = str(os.getpid() if own else follower)
    if DIE_WITH_PARENT in sys.argv:
        sys.argv[sys.argv.index(DIE_WITH_PARENT) + 1] = str(follower)
    sys.path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path += LIBRARY
    sys.executable = asked["executable"]
    # numba's lock is shared between a process and its forks: one that was killed holding it would
    # stop all others.
    if (parallel := sys.modules.get("numba.np.ufunc.parallel")) is not None:
        parallel._backend_init_process_lock = None  # type: ignore[attr-defined]
    # Who loses a process reads what it has written; only who loses power waits for the disk.
    os.fsync = lambda _file: None  # type: ignore[assignment]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def name_after(client: int) -> None:
    """Let ``/proc/PID/comm`` tell whose copy is this process's child; torchrun renames itself."""
    name = ctypes.create_string_buffer(FOLLOWER_NAME.format(client).encode())
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)


def run() -> None:
    """What ``python`` does with the words of ``sys.argv``."""
    flags = set()
    while sys.argv[0] in FLAGS:
        flags.add(sys.argv.pop(0))
    if "-u" in flags:
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(write_through=True)
    if sys.argv[0] == "-m":
        module = sys.argv[1]
        del sys.argv[0]
        if "-P" not in flags:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")


def end(code: object) -> None:
    """The interpreter's end, but that nothing is taken apart: pages stay shared."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    try:
        run()
    except SystemExit as error:
        end(error.code)
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        end(1)
    end(0)
