"""A real run of two ranks, asked for its metrics while it trains."""

from __future__ import annotations

import json
import socket
import urllib.error
from typing import Any

import pytest

from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.run_log import STAGES, RunLog
from hopper.traffic import CAUSES, Traffic
from hopper.train.run_metrics import RunMetrics, check_metrics
from hopper.train.run_progress import RunProgress
from tests.cache_server.test_metrics import PAGE, named_in, scrape
from tests.conftest import free_ports

DATA = {"data": {"partitioned": "parts"}}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Cluster:
    rank, world, server, traffic = 0, 1, 0, Traffic()


class _State:
    cluster, log = _Cluster(), RunLog()


def test_the_page_names_every_metric() -> None:
    metrics = RunMetrics("hop", _State(), RunProgress())  # type: ignore[arg-type]
    suffixes = {"counter": "_total", "info": "_info"}
    told = {each.name + suffixes.get(each.type, "") for each in metrics.collect()}
    assert named_in(PAGE, "hopper_rank") == told


def test_a_run_is_watched_while_it_trains(runs: Any) -> None:
    ranks, servers = free_ports(2), free_ports(2)
    run = runs.train(
        "watched",
        *("--cluster.metrics", f"127.0.0.1:{ranks}"),
        *("--cluster.server_metrics", f"127.0.0.1:{servers}"),
        epochs=500,
        checkpoint_every=4,
    )
    run.await_epochs(1)
    before = [scrape(f"127.0.0.1:{ranks + rank}") for rank in range(2)]
    run.await_epochs(len(run.epochs()) + 2)
    after = [scrape(f"127.0.0.1:{ranks + rank}") for rank in range(2)]
    answered = [scrape(f"127.0.0.1:{servers + server}") for server in range(2)]
    epoch = run.epochs()[0]
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        labels = {"engine": "hop", "rank": str(rank), "ranks": "2", "server": str(rank)}
        assert new["hopper_rank_info", tuple(sorted(labels.items()))] == 1
        assert new["hopper_rank_epoch", ()] > old["hopper_rank_epoch", ()] >= 0
        roots = "hopper_rank_roots_trained_total", ()
        assert new[roots] >= old[roots] + epoch["roots"]
        assert old[roots] >= epoch["roots"]
        assert new["hopper_rank_loss", (("model", "0"),)] > 0
        assert new["hopper_rank_iteration_seconds", ()] > 0
        assert 0 <= new["hopper_rank_iteration", ()] <= epoch["iterations"]
        for cause in CAUSES:
            sent = "hopper_rank_bytes_sent_total", (("cause", cause),)
            assert new[sent] > old[sent] > 0 or epoch["bytes"][cause] == 0
        stages = [
            [each["hopper_rank_stage_seconds_total", (("stage", name),)] for name in STAGES]
            for each in (old, new)
        ]
        assert sum(stages[1]) > sum(stages[0]) > 0
        assert new["hopper_rank_restarts", ()] == new["hopper_rank_resumed_step", ()] == 0
    for server, found in enumerate(answered):
        assert found["hopper_server_rows_sent_total", ()] > 0, server
    run.process.terminate()
    assert run.finish() != 0
    run.assert_nothing_remains()
    assert not any(listens(port + i) for port in (ranks, servers) for i in range(2))


def test_a_run_that_went_on_says_from_where(runs: Any) -> None:
    port = free_ports(2)
    words = ("--cluster.metrics", f"127.0.0.1:{port}")
    run = runs.train("went on", "--restarts", "1", *words, epochs=500, checkpoint_every=4)
    run.await_condition(lambda: run.checkpoint() is not None, "a checkpoint")
    run.ranks()[1].kill()

    def has_gone_on() -> bool:
        try:
            found = scrape(f"127.0.0.1:{port}")
        except (OSError, urllib.error.URLError):
            return False
        return found.get(("hopper_rank_resumed_step", ()), 0) > 0

    run.await_condition(has_gone_on, "a second start")
    found = scrape(f"127.0.0.1:{port}")
    assert found["hopper_rank_restarts", ()] == 1
    assert found["hopper_rank_resumed_step", ()] % 4 == 0
    run.process.terminate()
    run.finish()
    run.assert_nothing_remains()


def test_a_port_that_is_taken_starts_nothing(runs: Any) -> None:
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        run = runs.train("taken", "--cluster.metrics", f"127.0.0.1:{port}")
        assert run.finish() == 1
    assert run.stderr.startswith(f"error: cluster.metrics: cannot bind 127.0.0.1:{port + 1}: ")
    assert run.stderr.count("\n") == 1
    assert not run.epochs_file.exists()


def test_what_cannot_be_listened_on_is_refused() -> None:
    for address in ("here", ":9", "127.0.0.1:0", "127.0.0.1:65536"):
        with pytest.raises(ConfigError, match=r"cluster\.metrics: .*expected HOST:PORT"):
            make_config({**DATA, "cluster": {"metrics": address}})
    with pytest.raises(ConfigError, match=r"^cluster\.insecure: listening on 0\.0\.0\.0:"):
        check_metrics(make_config({**DATA, "cluster": {"metrics": "0.0.0.0:19401"}}), 1)
    both = {"metrics": "127.0.0.1:19401", "server_metrics": "127.0.0.1:19400"}
    with pytest.raises(ConfigError, match=r"^cluster\.server_metrics: 127\.0\.0\.1:19401 is one"):
        check_metrics(make_config({**DATA, "cluster": both}), 2)


def test_restarts_and_errors_are_lines_of_json_where_asked_for(runs: Any) -> None:
    run = runs.train(
        "json", "--restarts", "1", "--cluster.log_format", "json", epochs=500, checkpoint_every=4
    )
    run.await_condition(lambda: run.checkpoint() is not None, "a checkpoint")
    victim = run.ranks()[1]
    victim.kill()
    run.await_condition(lambda: "restart" in run.stderr, "a restart")
    run.process.terminate()
    run.finish()
    run.assert_nothing_remains()
    lines = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("{")]
    [told] = [each for each in lines if each["event"] == "restart"]
    assert (told["process"], told["restart"], told["of"]) == ("launcher", 1, 1)
    assert f"rank 1 (pid {victim.pid}) was killed by SIGKILL" in told["text"]
    errors = [each for each in lines if each["event"] == "error" and each["process"] == "rank"]
    assert all(each["rank"] == 0 for each in errors)
