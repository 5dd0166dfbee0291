"""Servers and ranks on a Ray cluster of this machine: the same run, and the same end."""

from __future__ import annotations

import importlib.util
from typing import Any

import psutil
import pytest

REAL_STARTS = True
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (hopper-gnn[ray])"
)


def launch(runs: Any, name: str, *overrides: str, **train: Any) -> Any:
    config = runs.config(name, **train)
    command = [*runs.hopper, "launch", "ray", str(config), *overrides]
    return runs.start(command, name, start_new_session=True)


def assert_nothing_of_it_remains(run: Any) -> None:
    """Neither of the run nor of Ray."""
    run.assert_nothing_remains(limit=5.0)
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_LAUNCHED_BY") == run.run_dir.name:
                left.append(process.cmdline())
        except psutil.Error:
            continue
    assert left == []


@pytest.fixture(autouse=True)
def _marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's processes inherit the environment: this is what they are found by."""
    monkeypatch.setenv("RAY_LAUNCHED_BY", request.node.name)


def test_the_run_on_ray_is_the_same(reference: Any, runs: Any) -> None:
    run = launch(runs, "test_the_run_on_ray_is_the_same")
    assert run.finish() == 0, run.stdout + run.stderr
    assert_nothing_of_it_remains(run)
    assert run.losses() == reference.losses()
    assert run.stdout.splitlines()[1:] != []
    assert "1 node(s) for 2 servers; some share one" in run.stderr


def test_a_killed_rank_ends_everything_and_is_named(runs: Any) -> None:
    run = launch(
        *(runs, "test_a_killed_rank_ends_everything_and_is_named"),
        epochs=1_000_000,
        evaluate_every=0,
    )
    run.await_epochs(1)
    victim = run.ranks()[1]
    victim.kill()
    assert run.finish() == 1
    assert_nothing_of_it_remains(run)
    told = f"rank 1 (pid {victim.pid}) was killed by SIGKILL; the other ranks were ended"
    assert run.stderr.strip().splitlines()[-1] == f"error: machine 1 (127.0.0.1): {told}"


def test_addresses_of_servers_are_refused(runs: Any) -> None:
    run = launch(runs, "given", "--cluster.servers", '["127.0.0.1:1", "127.0.0.1:2"]')
    assert run.finish() == 1
    expected = (
        "error: cluster.servers: hopper launch ray starts the servers; expected none, given 2"
    )
    assert run.stderr.strip() == expected
