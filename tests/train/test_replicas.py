"""A run survives the loss of feature servers that have a replica."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.server_processes import Servers


def test_a_run_with_lost_servers_has_the_same_losses(
    reference: Any, runs: Any, partitioned: Path, tmp_path: Path
) -> None:
    servers = Servers(tmp_path)
    pairs = [[servers.start(partitioned, server) for _ in range(2)] for server in range(2)]
    addresses = json.dumps([[server.address for server in pair] for pair in pairs])
    run = runs.train("replicas", "--cluster.servers", addresses)
    run.await_epochs(1)
    lost_servers = [pair[number] for number, pair in enumerate(pairs)]
    for server in lost_servers:
        server.process.kill()
        server.process.wait(10)
    # They do not end with the exit code of servers that are asked to.
    servers.forget(lost_servers)
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    servers.stop()
    assert run.losses() == reference.losses()
