"""Runs that a launcher restarts resume where they were, and compute the same bits."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import hopper
from tests.cache_server.test_metrics import scrape
from tests.conftest import free_ports

LOSE_RANK_1 = """
import os, signal, sys

class RankStart:
    def find_spec(self, name, path=None, target=None):
        if name == "hopper.train.__main__":
            sys.meta_path.remove(self)
            if os.environ["RANK"] == "1" and not os.path.exists({file!r}):
                with open({file!r}, "w") as stream:
                    stream.write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)

sys.meta_path.insert(0, RankStart())
"""


@pytest.fixture
def lost(tmp_path, monkeypatch) -> Path:
    """Kills the first process that is to be rank 1 when it starts; its id stays in this file."""
    # Python imports a module of this name when it starts.
    (tmp_path / "sitecustomize.py").write_text(LOSE_RANK_1.format(file=str(tmp_path / "lost")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Path(tmp_path / "lost")


def test_a_run_that_torchrun_restarts_computes_the_same_bits(
    runs, reference, parts, serve_partitions, lost
):
    """A rank is killed before there is a checkpoint, so ``train.resume = "auto"`` begins anew. Then
    its connections are cut, and the run is resumed. Then another rank is killed, and it is resumed
    again. No launcher wrote the configuration."""
    cut = {"rank": 1, "epoch": 0, "iteration": 3}
    callbacks = {"callbacks": ["own_callbacks:Cutting"], "callbacks_options": [cut]}
    config = runs.config("restarted", checkpoint_every=4, resume="auto", **callbacks)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "static",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(free_ports()),
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "3",
        "-m",
        "hopper.train",
        str(config),
        "--cluster.servers",
        json.dumps(serve_partitions(parts, 2)),
    ]
    run = runs.start(command, "restarted")
    run.await_condition(
        lambda: len(run.epochs()) >= 1 and len(run.ranks()) == 2, "an epoch of a second attempt"
    )
    assert lost.exists()
    run.ranks()[0].kill()
    assert run.finish() == 0, run.stderr
    assert run.losses() == reference.losses()
    assert run.best_model == reference.best_model
    assert '"resumed"' in (run.run_dir / "spans" / "rank-0.jsonl").read_text()
    result = hopper.RunResult.open(run.run_dir)
    assert result.config.cluster.servers
    assert result.load_model().state_dict()


def test_hopper_train_restarts_after_losing_a_rank_and_a_server(runs, reference, lost):
    """The run loses a rank before there is a checkpoint, then a feature server. It reports both, as
    lines of JSON, and its metrics tell the step that it resumed from. Losses and model are those of
    an undisturbed run."""
    port = free_ports(2)
    run = runs.train(
        "lost twice",
        "--restarts",
        "2",
        "--cluster.metrics",
        f"127.0.0.1:{port}",
        "--cluster.log_format",
        "json",
        checkpoint_every=4,
        loggers=["own_callbacks:Witness"],
        loggers_options=[{"wait_after": 1}],
    )
    run.await_condition(lambda: run.checkpoint is not None, "a checkpoint of a second start")
    server = run.server(1)
    server.kill()

    def resumed_step() -> int:
        with suppress(OSError):
            return int(scrape(f"127.0.0.1:{port}").get(("hopper_rank_resumed_step", ()), 0))
        return 0

    run.await_condition(lambda: resumed_step() > 0, "a third start")
    assert resumed_step() % 4 == 0
    assert scrape(f"127.0.0.1:{port}")["hopper_rank_restarts", ()] == 2
    (run.run_dir / "go-on").touch()
    assert run.finish() == 0, run.stderr
    lines = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("{")]
    first, second = (line for line in lines if line["event"] == "restart")
    assert (first["process"], first["restart"], first["of"]) == ("launcher", 1, 2)
    assert first["text"].endswith("restart 1 of 2, from the beginning")
    pid = int(lost.read_text())
    assert f"rank 1 (pid {pid}) was killed by SIGKILL" in first["text"]
    assert f"feature server 1 (pid {server.pid}, 127.0.0.1:" in second["text"]
    assert "was killed by SIGKILL" in second["text"]
    assert "restart 2 of 2, from step-" in second["text"]
    assert run.losses() == reference.losses()
    assert run.best_model == reference.best_model
    run.assert_nothing_remains()
