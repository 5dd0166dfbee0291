"""The Slurm script, with stand-ins for Slurm's commands that present this machine as two nodes."""

import os
from pathlib import Path

import pytest

from tests.conftest import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "launch_slurm.sbatch"

# Like srun, it runs the command once per node, and the first bad exit ends the others.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
pids=()
for node in 0 1; do
  SLURM_NODEID=$node "$@" &
  pids+=($!)
done
trap 'kill -TERM "${pids[@]}"' TERM
code=0
for _ in "${pids[@]}"; do
  wait -n || { code=$?; kill -TERM "${pids[@]}" 2>/dev/null; }
done
wait
exit $code
"""
SCONTROL = """#!/usr/bin/env bash
[[ $* == "show hostnames node[0-1]" ]] || exit 1
printf '127.0.0.1\\nlocalhost\\n'
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> None:
    """Slurm's commands and a job's environment."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[0-1]")
    first = free_ports(3)
    monkeypatch.setenv("MASTER_PORT", str(first))
    monkeypatch.setenv("SERVER_PORT", str(first + 1))


def test_the_job_trains_the_same_run(reference, runs, slurm):
    config = runs.config("by-slurm")
    run = runs.start(["bash", str(SCRIPT), str(config), "--cluster.insecure", "true"], "by-slurm")
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    assert run.losses() == reference.losses()
