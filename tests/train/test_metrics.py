"""The metrics of a real run of two ranks, read while it trains."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hopper.cluster.traffic import CAUSES, Traffic
from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.timing.run_log import STAGES, RunLog
from hopper.train.callbacks import Running
from hopper.train.run_metrics import RunMetrics, check_metrics
from tests.cache_server.test_metrics import PAGE, named_in, scrape
from tests.conftest import free_ports

DATA = {"data": {"partitioned": "parts"}}


def test_the_page_names_every_metric():
    state: Any = SimpleNamespace(cluster=SimpleNamespace(traffic=Traffic(), server=0), log=RunLog())
    run = Running(torch.nn.Linear(2, 2), make_config(DATA), 0, 1, iterations=9, batch=9)
    metrics = RunMetrics("hop", state, run)
    suffixes = {"counter": "_total", "info": "_info"}
    collected_names = {metric.name + suffixes.get(metric.type, "") for metric in metrics.collect()}
    assert named_in(PAGE, "hopper_rank") == collected_names


def test_metrics_of_ranks_and_servers_grow_while_a_run_trains(runs):
    """SIGTERM ends the launcher, even if restarts are left."""
    ranks, servers = free_ports(2), free_ports(2)
    run = runs.train(
        "watched",
        "--restarts",
        "9",
        "--cluster.metrics",
        f"127.0.0.1:{ranks}",
        "--cluster.server_metrics",
        f"127.0.0.1:{servers}",
        epochs=500,
        checkpoint_every=4,
    )
    run.await_epochs(1)
    before = [scrape(f"127.0.0.1:{ranks + rank}") for rank in range(2)]
    run.await_epochs(len(run.epochs()) + 2)
    after = [scrape(f"127.0.0.1:{ranks + rank}") for rank in range(2)]
    server_metrics = [scrape(f"127.0.0.1:{servers + server}") for server in range(2)]
    epoch = run.epochs()[0]
    for rank, (earlier, later) in enumerate(zip(before, after, strict=True)):
        labels = {"engine": "hop", "rank": str(rank), "ranks": "2", "server": str(rank)}
        assert later["hopper_rank_info", tuple(sorted(labels.items()))] == 1
        assert later["hopper_rank_epoch", ()] > earlier["hopper_rank_epoch", ()] >= 0
        roots = "hopper_rank_roots_trained_total", ()
        assert later[roots] >= earlier[roots] + epoch["roots"] >= 2 * epoch["roots"]
        assert later["hopper_rank_loss", (("model", "0"),)] > 0
        assert later["hopper_rank_iteration_seconds", ()] > 0
        assert 0 <= later["hopper_rank_iteration", ()] <= epoch["iterations"]
        for cause in CAUSES:
            sent = "hopper_rank_bytes_sent_total", (("cause", cause),)
            assert later[sent] > earlier[sent] > 0 or epoch["bytes"][cause] == 0
        keys = [("hopper_rank_stage_seconds_total", (("stage", name),)) for name in STAGES]
        assert sum(later[key] for key in keys) > sum(earlier[key] for key in keys) > 0
        assert later["hopper_rank_restarts", ()] == later["hopper_rank_resumed_step", ()] == 0
    assert all(values["hopper_server_rows_sent_total", ()] > 0 for values in server_metrics)
    run.process.terminate()
    assert run.finish() == 143
    run.assert_nothing_remains()
    assert "ended by SIGTERM" in run.stderr
    assert "restart" not in run.stderr
    for port in (ranks, ranks + 1, servers, servers + 1):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port))


def test_a_run_with_a_port_in_use_does_not_start(runs):
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        run = runs.try_to_train("taken", "--cluster.metrics", f"127.0.0.1:{port}")
        assert run.code == 1
    assert run.stderr.startswith(f"error: cluster.metrics: cannot bind 127.0.0.1:{port + 1}: ")
    assert run.stderr.count("\n") == 1
    assert not run.epochs_file.exists()


def test_bad_addresses_of_metrics_are_refused():
    for address in ("here", ":9", "127.0.0.1:0", "127.0.0.1:65536"):
        with pytest.raises(ConfigError, match=r"cluster\.metrics: .*expected HOST:PORT"):
            make_config({**DATA, "cluster": {"metrics": address}})
    with pytest.raises(ConfigError, match=r"^cluster\.insecure: listening on 0\.0\.0\.0:"):
        check_metrics(make_config({**DATA, "cluster": {"metrics": "0.0.0.0:19401"}}), 1)
    both = {"metrics": "127.0.0.1:19401", "server_metrics": "127.0.0.1:19400"}
    with pytest.raises(ConfigError, match=r"^cluster\.server_metrics: 127\.0\.0\.1:19401 is one"):
        check_metrics(make_config({**DATA, "cluster": both}), 2)
