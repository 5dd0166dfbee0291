"""Runs that a launcher restarts resume where they were, and compute the same bits."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_ports

# The first process that is to be rank 1 is killed when it starts; its id stays in a file.
LOSE_RANK_1 = """
if os.environ["RANK"] == "1" and not os.path.exists({file!r}):
    with open({file!r}, "w") as stream:
        stream.write(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("rendezvous", ["loopback", "static"])
def test_a_run_that_torchrun_restarts_computes_the_same_bits(
    runs: Any,
    reference: Any,
    partitioned: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    as_ranks_start: Callable[[str], None],
    tmp_path: Path,
    rendezvous: str,
) -> None:
    """One rank is killed in each of two attempts. The first dies before there is a checkpoint, so
    ``train.resume = "auto"`` begins anew once and resumes once."""
    as_ranks_start(LOSE_RANK_1.format(file=str(tmp_path / "lost")))
    name = f"restarted-{rendezvous}"
    config = runs.config(name, checkpoint_every=4, resume="auto")
    words = ["--rdzv-backend", rendezvous]
    if rendezvous == "static":
        words += ["--master-addr", "127.0.0.1", "--master-port", str(free_ports())]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", *words, "--nproc-per-node", "2"),
        *("--max-restarts", "2", "-m", "hopper.train", str(config)),
        *("--cluster.servers", json.dumps(serve_partitions(partitioned, 2))),
    ]
    run = runs.start(command, name)
    run.await_condition(
        lambda: len(run.epochs()) >= 1 and len(run.ranks()) == 2, "an epoch of a second attempt"
    )
    assert (tmp_path / "lost").exists()
    run.ranks()[0].kill()
    assert run.finish() == 0, run.stderr
    assert run.losses() == reference.losses()
    best = "best.safetensors"
    assert (run.run_dir / best).read_bytes() == (reference.run_dir / best).read_bytes()
    assert '"resumed"' in (run.run_dir / "spans" / "rank-0.jsonl").read_text()


def test_hopper_train_restarts_after_losing_a_rank_and_a_server(
    runs: Any, reference: Any, as_ranks_start: Callable[[str], None], tmp_path: Path
) -> None:
    """The run loses a rank before there is a checkpoint, then a feature server. It reports both.
    Losses and model are those of an undisturbed run."""
    as_ranks_start(LOSE_RANK_1.format(file=str(tmp_path / "lost")))
    run = runs.train("lost twice", "--restarts", "2", checkpoint_every=4)
    run.await_condition(lambda: run.checkpoint() is not None, "a checkpoint of a second start")
    run.server(1).kill()
    assert run.finish() == 0, run.stderr
    messages = [line for line in run.stderr.splitlines() if "restart" in line]
    assert len(messages) == 2
    assert messages[0].endswith("restart 1 of 2, from the beginning")
    pid = int((tmp_path / "lost").read_text())
    assert f"rank 1 (pid {pid}) was killed by SIGKILL" in messages[0]
    assert "feature server 1" in messages[1]
    assert "restart 2 of 2, from step-" in messages[1]
    assert run.losses() == reference.losses()
    best = "best.safetensors"
    assert (run.run_dir / best).read_bytes() == (reference.run_dir / best).read_bytes()
    run.assert_nothing_remains()


def test_a_run_ended_by_a_signal_is_not_restarted(runs: Any) -> None:
    """SIGTERM ends the launcher, even if restarts are left."""
    run = runs.train("told to end", "--restarts", "9", checkpoint_every=4, epochs=500)
    run.await_epochs(1)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() != 0
    assert "restart" not in run.stderr
    assert "ended by SIGTERM" in run.stderr
    run.assert_nothing_remains()
