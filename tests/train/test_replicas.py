"""A feature server that is lost costs time only where another one serves the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cache_server.conftest import Servers

REAL_STARTS = True


def test_a_lost_server_costs_time_only(
    reference: Any, runs: Any, partitioned: Path, tmp_path: Path
) -> None:
    servers = Servers(tmp_path)
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
