"""A feature server that is lost costs time only where another one serves the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cache_server.conftest import Servers
from tests.conftest import PYTHON


def test_a_lost_server_costs_time_only(
    reference: Any,
    runs: Any,
    partitioned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = Servers(tmp_path)
    with monkeypatch.context() as patch:
        # These are killed themselves, not what stands for them.
        patch.setattr(sys, "executable", PYTHON)
        pairs = [[servers.start(partitioned, server) for _ in range(2)] for server in range(2)]
    addresses = json.dumps([[each.address for each in pair] for pair in pairs])
    run = runs.train("replicas", "--cluster.servers", addresses)
    run.await_epochs(1)
    lost = [pair[number] for number, pair in enumerate(pairs)]
    for each in lost:
        each.process.kill()
        each.process.wait(10)
    # They do not end as those that are told to.
    servers.forget(lost)
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    servers.stop()
    assert run.losses() == reference.losses()
