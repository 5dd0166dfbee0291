"""A process that stands for one of forked_python.py's: ends as it ends, and it with this one.

usage: forked_python_client.py EXECUTABLE PYTHON ADDRESS WORDS...; not a test by itself. EXECUTABLE
is what this calls itself; PYTHON is the interpreter that runs WORDS where a copy would not be the
same process: other words, another number of OpenMP's threads, or other cores.

It imports only what an interpreter has built in: json, signal and socket take longer to import than
all that it does.
"""

import _signal
import _socket
import os
import sys

THREADS = "OMP_NUM_THREADS"
COPIED = (
    "cache_server",
    "hopper.cli",
    "hopper.partition.metis",
    "hopper.predict",
    "hopper.train",
    "hopper.train.machine_agent",
    "torch.distributed.run",
)
FLAGS = ("-P", "-u")
DIE_WITH_PARENT = "--die-with-parent"
COPY_NAME = "runs {}"
"""What a client calls itself; the number is its copy's process id."""
SURROUNDINGS_SUFFIX = ".surroundings"
"""What the file beside the socket ends with that holds the server's surroundings."""


def main(executable, python, address, words):
    if not can_be_copied(address, words):
        os.execv(python, [python, *words])
    parent = os.environ.get("HOPPER_DIE_WITH_PARENT")
    if DIE_WITH_PARENT in words:
        parent = words[words.index(DIE_WITH_PARENT) + 1]
    # A script that becomes torchrun names its own process, for ranks to end with.
    if parent and int(parent) != os.getpid():
        follow(int(parent))
    asked = {
        "executable": executable,
        "process": os.getpid(),
        "words": words,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
    }
    # What is asked for travels as a literal of Python.
    text = ascii(asked).encode()
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(address)
    # What ends this process ends the other.
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1):
        _signal.signal(number, lambda number, _: hand_on(connection, number))
    files = b"".join(file.to_bytes(4, sys.byteorder) for file in (0, 1, 2))
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)
    connection.sendmsg([len(text).to_bytes(4, "little")], [rights])
    connection.sendall(text)
    copy = connection.recv(4, _socket.MSG_WAITALL)
    with open("/proc/self/comm", "w") as stream:
        stream.write(COPY_NAME.format(int.from_bytes(copy, "little")))
    answer = connection.recv(4, _socket.MSG_WAITALL)
    code = int.from_bytes(answer, "little", signed=True) if len(answer) == 4 else 1
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def can_be_copied(address, words):
    """Whether the server's copy would be what Python would be."""
    with open(address + SURROUNDINGS_SUFFIX) as stream:
        same = stream.read()
    plain = words[next(i for i, word in enumerate(words) if word not in FLAGS) :]
    known = plain[1] in COPIED if plain[0] == "-m" else plain[0].endswith(".py")
    return known and same == surroundings()


def surroundings():
    """What a copy cannot take over, as a text."""
    return f"{os.environ.get(THREADS)} threads, cores {sorted(os.sched_getaffinity(0))}"


def hand_on(connection, number):
    """Tell the server of a signal; the other process may have ended just now."""
    try:  # noqa: SIM105, contextlib is not built in
        connection.send(bytes([number]))
    except OSError:
        pass


def follow(parent):
    """Get SIGTERM when the process that started this one ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, _signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
