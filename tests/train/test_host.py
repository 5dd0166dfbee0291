"""``hopper host``: one machine's part of a run."""

import json
import os

import pytest

from hopper.cli import main
from hopper.launch import host as host_module
from hopper.launch.host import _Launcher, _LauncherGone
from tests.conftest import free_ports

SERVERS = '["127.0.0.1:1", "127.0.0.1:2"]'


def test_several_servers_of_a_run_on_one_machine(runs, reference):
    """Their ranks are this machine's, and the run is that of ``hopper train``."""
    first = free_ports(3)
    servers = json.dumps([f"127.0.0.1:{first + 1}", f"127.0.0.1:{first + 2}"])
    command = [
        *runs.hopper,
        "host",
        str(runs.config("hosted")),
        "--server",
        "0",
        "--server",
        "1",
        "--meet",
        f"127.0.0.1:{first}",
        "--listen",
        "127.0.0.1",
        "--cluster.servers",
        servers,
    ]
    run = runs.start(command, "hosted")
    assert run.finish() == 0, run.stderr
    run.assert_nothing_remains()
    assert run.losses() == reference.losses()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server", "0"], "cluster.servers: expected the addresses of 2 servers, given 0"),
        (["--server", "2", "--cluster.servers", SERVERS],
         "--server: expected a number from 0 to 1, given 2"),
        (["--server", "0", "--cluster.servers", SERVERS],
         "cluster.insecure: listening on 0.0.0.0:0, which is no loopback"),
        (["--server", "0", "--listen", "127.0.0.1", "--cluster.servers", SERVERS],
         "--meet: expected HOST:PORT, found ''"),
        (["--server", "0", "--cluster.servers", SERVERS, "--train.run_dir="],
         "train.run_dir: name one: machines cannot agree on one by themselves"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_is_refused(runs, capsys, words, message):
    assert main(["host", str(runs.config("refused-host")), *words]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_silent_launcher_is_given_up(monkeypatch):
    """Its connection may be open for hours after its machine has gone."""
    reading, writing = os.pipe()
    monkeypatch.setattr(host_module, "_INPUT", reading)
    launcher = _Launcher()
    os.write(writing, b'{"release": true}\n{}\n')
    launcher.hear()
    assert launcher.orders == {"release": True}
    launcher.limit = 0.0
    with pytest.raises(_LauncherGone):
        launcher.hear()
    for descriptor in (reading, writing):
        os.close(descriptor)
