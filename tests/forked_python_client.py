"""A process that stands for one of forked_python.py's: ends as it ends, and it with this one.

usage: forked_python_client.py EXECUTABLE PYTHON ADDRESS WORDS...; not a test by itself. EXECUTABLE
is what this calls itself; PYTHON is the interpreter that runs WORDS where a copy would not be the
same process: other words, another number of OpenMP's threads, or other cores.
"""

import json
import os
import signal
import socket
import struct
import sys
from contextlib import suppress

THREADS = "OMP_NUM_THREADS"
COPIED = (
    "cache_server",
    "hopper.bench.emulate.waiting_rank",
    "hopper.cli",
    "hopper.partition.metis",
    "hopper.predict",
    "hopper.train",
    "hopper.train.machine_agent",
    "torch.distributed.run",
)
FLAGS = ("-P", "-u")
DIE_WITH_PARENT = "--die-with-parent"
FOLLOWER_NAME = "follows {}"


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
    text = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        # What ends this process ends the other.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, _: hand_on(connection, number))
        socket.send_fds(connection, [struct.pack("<i", len(text))], [0, 1, 2])
        connection.sendall(text)
        told = connection.recv(4, socket.MSG_WAITALL)
    code = struct.unpack("<i", told)[0] if len(told) == 4 else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def can_be_copied(address, words):
    """Whether the server's copy would be what Python would be."""
    with open(address + ".json") as stream:
        same = json.load(stream)
    plain = words[next(i for i, word in enumerate(words) if word not in FLAGS) :]
    known = plain[1] in COPIED if plain[0] == "-m" else plain[0].endswith(".py")
    return known and same == surroundings()


def surroundings():
    """What a copy cannot take over."""
    return [
        os.environ.get(THREADS),
        sorted(os.sched_getaffinity(0)),
    ]


def hand_on(connection, number):
    """Tell the server of a signal; the other process may have ended just now."""
    with suppress(OSError):
        connection.send(bytes([number]))


def follow(parent):
    """Get SIGTERM when the process that started this one ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
