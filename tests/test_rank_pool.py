"""The ranks that tests share: each job finds them as new, and a job that fails ends them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import rank_pool as pool_module
from tests.rank_pool import STANDING_RANK, RankPool
from tests.server_processes import own_path

# Leaves all that a job can change; the number in ``own`` differs from job to job.
CHANGES = """
import json, os, sys, warnings
import numpy, torch
import own
from hopper.cluster.cluster import Cluster

cluster = Cluster.join(1, torch.device("cpu"), 60, 120)
total = torch.ones(1)
cluster.all_reduce(total, "control", "adding")
cluster.leave()
own.seen = getattr(own, "seen", 0) + 1
found = [os.getpid(), total.item(), own.NUMBER, own.seen, os.environ.get("LEFT"), os.getcwd(),
         sys.path.count("left"), torch.get_default_dtype() is torch.float32,
         torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),
         torch.rand(1).item()]
os.environ["LEFT"] = "1"
os.chdir("/")
sys.path.append("left")
torch.set_default_dtype(torch.float64)
torch.set_num_threads(2)
torch.use_deterministic_algorithms(True)
sys.stdout = None
open(sys.argv[1], "w").write(json.dumps(found))
"""
FAILING = {
    "raises": ("if os.environ['RANK'] == '1':\n    raise KeyError('gone')", "KeyError: 'gone'"),
    "is killed": ("os.kill(os.getpid(), 9)", "ended with -9"),
    "hangs": ("if os.environ['RANK'] == '1':\n    time.sleep(600)", "line 3 in <module>"),
    "leaves its group": (
        "from hopper.cluster.cluster import Cluster\nimport torch\n"
        "Cluster.join(1, torch.device('cpu'), 60, 120)\n",
        "left its process group behind",
    ),
}


def run_script(pool: RankPool, text: str, folder: Path) -> list[int]:
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(f"import os, time\n{text}")
    logs = [folder / f"{rank}.log" for rank in range(2)]
    return pool.run(
        lambda rank: [str(script), str(folder / f"{rank}.json")],
        2,
        lambda rank: (logs[rank], logs[rank]),
    )


def test_each_job_finds_the_same_ranks_as_new(rank_pool, tmp_path):
    found = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "own.py").write_text(f"NUMBER = {number}")
        assert run_script(rank_pool, CHANGES, folder) == [0, 0]
        found.append([json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)])
    for (pid, total, own, *state), (later_pid, _, later_own, *later) in zip(*found, strict=True):
        assert (later_pid, total) == (pid, 2.0)
        assert (own, later_own) == (0, 1)
        assert later == state
        assert state[:7] == [1, None, str(Path.cwd()), 0, True, 1, False]


@pytest.mark.parametrize("way", FAILING)
def test_a_job_that_fails_ends_the_ranks_and_the_next_one_has_others(
    rank_pool, tmp_path, monkeypatch, way
):
    script, text = FAILING[way]
    assert run_script(rank_pool, "", tmp_path / "first") == [0, 0]
    if way == "hangs":
        monkeypatch.setattr(pool_module, "DEADLINE_SECONDS", 1.0)
    codes = run_script(rank_pool, script, tmp_path / way)
    assert any(codes)
    logs = "".join((tmp_path / way / f"{rank}.log").read_text() for rank in range(2))
    assert text in logs + "".join(f"ended with {code}\n" for code in codes)


def test_a_rank_ends_with_the_tests(tmp_path):
    starts = (
        "import os, socket, subprocess, sys\n"
        "(near, far), jobs = socket.socketpair(), socket.socketpair()\n"
        f"words = [sys.executable, {str(STANDING_RANK)!r}, str(os.getpid()), str(far.fileno())]\n"
        "subprocess.Popen(words, pass_fds=[far.fileno()])\n"
        "socket.send_fds(near, [b'fork'], [jobs[0].fileno()])\n"
        "print(int(near.recv(16)), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": own_path()},
    ) as parent:
        assert parent.stdout is not None
        rank = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([rank], timeout=60)
    assert not rank.is_running()
