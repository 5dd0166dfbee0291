"""An interpreter that has imported already: every process that it starts is a copy of one.

Importing torch, numba and what comes with them is nearly all that a rank or a launcher costs in a
test. Given to tests in place of ``sys.executable``, it runs what Python would run (``-P -m MODULE``
or a script, also with ``-u``), in a process with the environment, the folder, the files and the end
of that one.

usage: forked_python.py ADDRESS PARENT; not a test by itself. Serves forked_python_client.py at the
socket ADDRESS until the process PARENT ends.
"""

from __future__ import annotations

import ast
import atexit
import ctypes
import io
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from forked_python_client import DIE_WITH_PARENT, FLAGS, SURROUNDINGS_SUFFIX, surroundings

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
HUGE_PAGE_BYTES = 2 << 20
MADV_COLLAPSE = 25
TESTS_PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)
LIBRARY = [folder for folder in sys.path[1:] if folder not in TESTS_PATH]


class Copy:
    """A copy of this process, and the connection to the client that it runs for."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self.process = process
        self.ended = os.pidfd_open(process)
        self.connection: socket.socket | None = connection

    def hand_on(self) -> None:
        """Send the copy the signal that its client got; kill it if the client has ended."""
        assert self.connection is not None
        message = b""
        with suppress(ConnectionError):
            message = self.connection.recv(1)
        with suppress(ProcessLookupError):
            os.kill(self.process, message[0] if message else signal.SIGKILL)
        if not message:
            self.connection.close()
            self.connection = None

    def end(self) -> None:
        """Tell the client how the copy ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        if self.connection is not None:
            with suppress(OSError):
                self.connection.sendall(struct.pack("<i", code))
        self.close()

    def close(self) -> None:
        """Close this process's files."""
        os.close(self.ended)
        if self.connection is not None:
            self.connection.close()


def main(address: str, parent: int) -> None:
    """Serve clients. It returns in every copy, which then runs what its client asked for."""
    end_with_parent(parent)
    server, kernels, copies = os.getpid(), KeptKernels(), list[Copy]()
    # Clients that have not asked yet: one that waits for a core must not keep the others waiting.
    silent = list[socket.socket]()
    kernels.load()
    prepare_forks()
    with socket.socket(socket.AF_UNIX) as listener:
        Path(address + SURROUNDINGS_SUFFIX).write_text(surroundings())
        listener.bind(address)
        listener.listen(64)
        while True:
            clients = {copy.connection: copy for copy in copies if copy.connection is not None}
            ends = {copy.ended: copy for copy in copies}
            awaited: list[Any] = [listener, *silent, *clients, *ends]
            ready = select.select(awaited, [], [])[0]
            for copy in [ends[file] for file in ready if file in ends]:
                copy.end()
                copies.remove(copy)
            for connection in ready:
                # A copy that has just ended has closed its connection.
                if connection in clients and clients[connection] in copies:
                    clients[connection].hand_on()
            if listener in ready:
                silent.append(listener.accept()[0])
            connection = next((connection for connection in silent if connection in ready), None)
            if connection is None:
                continue
            silent.remove(connection)
            if kernels.load():
                prepare_forks()
            if (received := receive(connection)) is None:
                connection.close()
                continue
            asked, files = received
            process = os.fork()
            if not process:
                for other in (connection, *silent):
                    other.close()
                for copy in copies:
                    copy.close()
                break
            for file in files:
                os.close(file)
            with suppress(OSError):
                connection.sendall(struct.pack("<i", process))
            copies.append(Copy(process, connection))
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    become(asked, server)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """What a client asks for, and its standard files; none if it ends meanwhile."""
    files: list[int] = []
    with suppress(ConnectionError), connection.makefile("rb") as stream:
        size, files, _, _ = socket.recv_fds(connection, 4, STANDARD_FILES)
        if len(size) == 4:
            expected = struct.unpack("<i", size)[0]
            text = stream.read(expected)
            if len(text) == expected:
                return ast.literal_eval(text.decode()), files
    for file in files:
        os.close(file)
    return None


def prepare_forks() -> None:
    """Make copies begin and end in a moment."""
    use_huge_pages()
    # numba would finalise each kernel at a copy's end, and so write to most of the memory that the
    # copy shares. What a copy itself makes is finalised.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def use_huge_pages() -> None:
    """Let the kernel keep this process's memory in huge pages, where it can.

    A fork copies the table of all pages, and most of a fork's time is that.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split()
        if access == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            start = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            size = end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES - start
            if size > 0:
                # Older kernels do not know of it, and copies are right without.
                madvise(start, size, MADV_COLLAPSE)


def enter_host(process: int) -> None:
    """Go where a process is: its control groups, its network and its mounts."""
    groups = {
        line: Path("/sys/fs/cgroup", name.removeprefix("name="), group.lstrip("/"))
        for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()
        for _, name, group in [line.split(":", 2)]
    }
    here = Path("/proc/self/cgroup").read_text().splitlines()
    for line in groups.keys() - set(here):
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


def become(asked: dict[str, Any], server: int) -> None:
    """Take over what a new interpreter would have."""
    enter_host(asked["process"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = list(asked["words"])
    # The client ends with its own parent, and so does what is told to, whose parent is the server.
    end_with_parent(server)
    if parent := os.environ.get("HOPPER_DIE_WITH_PARENT"):
        is_client = parent == str(asked["process"])
        os.environ["HOPPER_DIE_WITH_PARENT"] = str(os.getpid() if is_client else server)
    if DIE_WITH_PARENT in sys.argv:
        sys.argv[sys.argv.index(DIE_WITH_PARENT) + 1] = str(server)
    sys.path = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path += LIBRARY
    sys.executable = asked["executable"]
    # numba's lock is shared between a process and its forks: one that was killed holding it would
    # stop all others.
    if (parallel := sys.modules.get("numba.np.ufunc.parallel")) is not None:
        parallel._backend_init_process_lock = None  # type: ignore[attr-defined]
    # numba ends children of a process that has launched GNU OpenMP's threads. The server has
    # launched none, since each rank has one thread, and a copy may do so itself.
    if (pool := sys.modules.get("numba.np.ufunc.omppool")) is not None:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(pool.launch_threads)(1)
    # Who loses a process reads what it has written; only who loses power waits for the disk.
    os.fsync = lambda _file: None  # type: ignore[assignment]
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
