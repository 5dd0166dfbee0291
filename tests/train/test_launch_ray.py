"""Servers and ranks on a Ray cluster of this machine train the same run."""

import importlib.util
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopper.cli import main

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)
MARK = "RAY_LAUNCHED_BY"
# Ray starts a dozen processes, one after the other, before it starts one of Hopper.
START_LIMIT = 400.0


def launch(runs: Any, name: str, *overrides: str, **train: Any) -> Any:
    words = "--on", "ray", "--cluster.start_timeout_seconds", str(START_LIMIT), *overrides
    return runs.train(name, *words, start_new_session=True, **train)


def rays_processes() -> list[bytes]:
    """Commands of the processes that have this test's mark."""
    found, mark = [], os.fsencode(f"{MARK}={os.environ[MARK]}")
    # psutil takes longer than the processes that it looks for. Those of others cannot be read.
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes())
    return found


def assert_nothing_remains(run: Any) -> None:
    """Fail if a process of the run or of Ray is left.

    Ray's agents are not ended by its driver: they look every few seconds for the raylet.
    """
    run.assert_nothing_remains(limit=5.0)
    deadline = time.monotonic() + 60.0
    while (commands := rays_processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert commands == []


@pytest.fixture(autouse=True)
def _mark_processes(tmp_path, monkeypatch) -> None:
    """Set a variable that Ray's processes inherit, by which the test finds them.

    No other test has its value, not even the same one of tests that run beside these.
    """
    monkeypatch.setenv(MARK, str(tmp_path))


@pytest.mark.timeout(2 * START_LIMIT)
def test_a_lost_rank_is_named_and_the_restarted_run_has_the_same_losses(reference, runs, request):
    run = launch(runs, request.node.name, "--restarts", "1", checkpoint_every=4)
    run.await_condition(lambda: run.checkpoint is not None, "a checkpoint", START_LIMIT)
    assert {rank.nice() for rank in run.ranks()} == {psutil.Process().nice()}
    victim = run.ranks()[1]
    victim.kill()
    assert run.finish(START_LIMIT) == 0, run.stdout + run.stderr
    assert_nothing_remains(run)
    failure = f"rank 1 (pid {victim.pid}) was killed by SIGKILL; the other ranks were ended"
    assert f"machine 1 (127.0.0.1): {failure}; restart 1 of 1, from step-" in run.stderr
    assert run.losses() == reference.losses()
    assert run.stdout.splitlines()[1:] != []
    assert "1 node(s) for 2 servers; some share one" in run.stderr


@pytest.mark.timeout(2 * START_LIMIT)
def test_a_script_runs_on_rays_machines(runs, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import hopper, torch\n"
        "torch.distributed.init_process_group('gloo')\n"
        "with hopper.connect() as graph:\n"
        "    print(f'{graph.rank} of {graph.world}', graph.graph.book.servers)\n"
    )
    run = launch(runs, "script", script=str(script))
    assert run.finish(START_LIMIT) == 0, run.stdout + run.stderr
    assert sorted(run.stdout.splitlines()) == ["0 of 2 2", "1 of 2 2"]


def test_addresses_of_servers_are_refused(runs, capsys):
    config = runs.config("given")
    addresses = '["127.0.0.1:1", "127.0.0.1:2"]'
    assert main(["train", str(config), "--on", "ray", "--cluster.servers", addresses]) == 1
    expected = (
        "error: cluster.servers: hopper train --on ray starts the servers; expected none, given 2"
    )
    assert capsys.readouterr().err.splitlines() == [expected]
