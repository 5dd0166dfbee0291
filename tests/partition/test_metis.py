"""METIS is a process of its own: how it is chosen, fails and ends."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from hopper.errors import RequestError
from hopper.files.scratch import scratch_folder
from hopper.graph.schema import GraphSchema, NodeType
from hopper.partition.balance import MOST_CLASSES, number_of_constraints
from hopper.partition.metis import Adjacency, assign_metis, choose_backend

PAIR = Adjacency(np.array([0, 1, 2]), np.array([1, 0]))

# METIS takes seconds for it.
DIVIDES = """
import sys
from pathlib import Path
import numpy as np
from hopper.partition.metis import Adjacency, assign_metis

nodes = 200_000
ends = np.repeat(np.arange(nodes), 6), np.random.default_rng(0).integers(0, nodes, 6 * nodes)
src, dst = np.concatenate(ends), np.concatenate(ends[::-1])
order, indptr = np.argsort(dst), np.zeros(nodes + 1, np.int64)
np.cumsum(np.bincount(dst, minlength=nodes), out=indptr[1:])
weights = np.ones((nodes, 1), np.int64)
assign_metis(Adjacency(indptr, src[order]), weights, 4, 0, "pymetis", Path(sys.argv[1]))
"""


def test_metis_ends_with_the_process_that_started_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", DIVIDES, str(tmp_path)]) as process:
        parent = psutil.Process(process.pid)
        while not (children := parent.children()) and process.poll() is None:
            time.sleep(0.05)
        process.kill()
        code = process.wait(60)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 120
    with suppress(psutil.NoSuchProcess):
        while children[0].status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "METIS goes on"
            time.sleep(0.05)
    # A killed process removes nothing; the next one does.
    with scratch_folder(".metis.unfinished-", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_disk_too_full_for_the_result_of_metis_is_told_before_metis_runs(tmp_path, monkeypatch):
    allocate = os.posix_fallocate

    def refuse(file: int, first: int, size: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith("homes.npy"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, first, size)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("METIS runs"))
    with pytest.raises(OSError, match=r"No space left on device: '.*homes.npy'"):
        assign_metis(PAIR, np.ones((2, 1), np.int64), 2, 0, "pymetis", tmp_path)


def test_a_failing_metis_is_an_error_that_quotes_its_output(tmp_path):
    text = r"(?s)could not divide 2 nodes over 2 .*exit code 1.*it said"
    with pytest.raises(RequestError, match=text):
        assign_metis(PAIR, np.ones((2, 0), np.int64), 2, 0, "pymetis", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pymetis_takes_over_where_dgl_is_missing_and_streaming_is_advised_without_any(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    assert choose_backend() == "pymetis"
    with pytest.raises(RequestError, match=r"METIS needs dgl.* pip install dgl==1\.1"):
        choose_backend("dgl")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(RequestError, match="or use --method stream"):
        choose_backend()
    with pytest.raises(RequestError, match="expected auto, dgl or pymetis, given 'parmetis'"):
        choose_backend("parmetis")


def test_classes_of_many_types_fit_the_constraints_of_metis():
    assert number_of_constraints(GraphSchema("one", {"t": NodeType(1)}, {}, "t")) == 4
    many_types = GraphSchema("many", {f"t{i}": NodeType(1) for i in range(30)}, {}, "t0")
    assert number_of_constraints(many_types) == 2 * MOST_CLASSES
