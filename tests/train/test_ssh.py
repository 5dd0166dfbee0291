"""``hopper train --on ssh``: two machines that are this one, by an sshd on a loopback port."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.launch.machines import ProcessChannel, _Machine
from hopper.launch.on_ssh import Machine, read_hostfile
from tests.conftest import free_ports

LIMIT = 20.0
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
"""
CLIENT = """
Host *
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""


@pytest.fixture(scope="module")
def ssh(tmp_path_factory) -> Iterator[list[str]]:
    """The words that let ``hopper train`` use an sshd of this user's; skips if there is none."""
    programs = SSHD, shutil.which("ssh"), shutil.which("ssh-keygen")
    if None in programs:
        pytest.skip("sshd, ssh or ssh-keygen is not installed")
    folder, port = tmp_path_factory.mktemp("ssh"), free_ports()
    for name in ("host", "user"):
        words = [str(programs[2]), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    (folder / "server").write_text(SERVER.format(port=port, folder=folder))
    # Some people's shells say something at every login.
    (folder / "python").write_text(f'#!/bin/sh\necho hello\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    (folder / "client").write_text(CLIENT.format(folder=folder))
    (folder / "hosts").write_text(f"# two\n127.0.0.1:{port} slots=1\n\nlocalhost:{port}  # again\n")
    if os.geteuid() == 0:
        # Where root's sshd lets its unprivileged part run; the service makes it, too.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = folder / "log"
    with log.open("wb") as output:
        sshd = subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(folder / "server")], stdout=output, stderr=output
        )
    deadline = time.monotonic() + LIMIT
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            break
        if sshd.poll() is not None or time.monotonic() > deadline:
            sshd.kill()
            pytest.skip(f"sshd does not start: {log.read_text()}")
        time.sleep(0.05)
    client = f"ssh -F {folder / 'client'}"
    yield ["--on", f"ssh:{folder / 'hosts'}", "--ssh", client, "--python", str(folder / "python")]
    sshd.terminate()
    sshd.wait(LIMIT)


def start(runs: Any, ssh: list[str], name: str, *words: str, **train: Any) -> Any:
    command = [*runs.hopper, "train", str(runs.config(name, **train)), *ssh, *words]
    return runs.start(command, name, start_new_session=True)


def test_a_lost_rank_is_named_and_the_restarted_run_has_the_same_losses(reference, runs, ssh):
    run = start(runs, ssh, "over-ssh", "--restarts", "1", checkpoint_every=4)
    run.await_condition(lambda: run.checkpoint is not None, "a checkpoint")
    victim = run.ranks()[1]
    victim.kill()
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    failure = f"rank 1 (pid {victim.pid}) was killed by SIGKILL; the other ranks were ended"
    assert f"machine 1 (localhost): {failure}; restart 1 of 1, from step-" in run.stderr
    assert run.losses() == reference.losses()
    lines = run.stdout.splitlines()
    assert {line.partition("] ")[0] for line in lines} == {"[0 127.0.0.1", "[1 localhost"}
    assert [line for line in lines if line.startswith("[1")] == ["[1 localhost] hello"] * 2


@pytest.mark.parametrize("way", ["connection", "launcher"])
def test_nothing_outlives_the_connection_or_the_launcher(runs, ssh, way):
    run = start(runs, ssh, f"cut-{way}", epochs=1_000_000, evaluate_every=0)
    run.await_epochs(1)
    if way == "launcher":
        run.process.kill()
        assert run.finish() == -signal.SIGKILL
        run.assert_nothing_remains(limit=LIMIT)
        return
    clients = [member for member in run.members() if member.name() == "ssh"]
    [client] = [member for member in clients if "localhost" in member.cmdline()]
    client.kill()
    assert run.finish() == 1, run.stderr
    # What the shell of that machine has said may stand between.
    lines = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert lines
    assert lines[0].startswith("error: machine 1 (localhost): lost: ssh was killed by SIGKILL")
    assert "were ended" in run.stderr
    run.assert_nothing_remains(limit=LIMIT)


def test_a_machine_that_cannot_be_reached_is_named(runs, ssh, tmp_path):
    (tmp_path / "hosts").write_text(f"127.0.0.1:{free_ports()}\n" * 2)
    run = start(runs, ["--on", f"ssh:{tmp_path / 'hosts'}", *ssh[2:]], "unreachable")
    assert run.finish() == 1
    assert "error: machine 0: lost: ssh ended with exit code 255: ssh: connect to" in run.stderr
    run.assert_nothing_remains(limit=LIMIT)


def test_a_hostfile_is_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# all\nnode0:2222 slots=2\n\nme@node1 address=10.0.0.2 # far\n[::1]:22\n")
    assert read_hostfile(file) == [
        Machine("node0", 2222, 2, "", 2),
        Machine("me@node1", None, None, "10.0.0.2", 4),
        Machine("::1", 22, None, "", 5),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nobody\n", "expected a line for each machine, found none"),
        ("a\nb:c:d\n", r"line 2: expected \[USER@\]HOST\[:PORT\], given 'b:c:d'"),
        ("-oProxyCommand=x\n", "line 1: expected .*given '-oProxyCommand=x'"),
        ("a:0\n", "line 1: expected a port from 1 to 65535, given 0"),
        ("a cpus=3\n", "line 1: expected slots=N or address=ADDRESS, given 'cpus=3'"),
        ("a\n\na slots=none\n", "line 3: slots: expected a number from 1, given 'none'"),
    ],
)
def test_a_wrong_line_is_refused(tmp_path, text, message):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(RequestError, match=f"^--on ssh: {tmp_path}/hosts.*{message}"):
        read_hostfile(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("a\n", "expected 2 machines, one for each partition, given 1"),
        ("a\nb slots=2\n", "line 2: slots: expected 1, as cluster.ranks_per_server says, given 2"),
    ],
)
def test_a_hostfile_that_does_not_fit_the_run_is_refused(runs, tmp_path, capsys, hosts, message):
    (tmp_path / "hosts").write_text(hosts)
    assert main(["train", str(runs.config("unfit")), "--on", f"ssh:{tmp_path}/hosts"]) == 1
    assert message in capsys.readouterr().err


def test_another_way_is_refused(runs, capsys):
    assert main(["train", str(runs.config("nowhere")), "--on", "mpi:hosts"]) == 1
    expected = "error: --on: expected ssh:HOSTFILE, ray or ray:HOST:PORT, given 'mpi:hosts'"
    assert capsys.readouterr().err.strip() == expected


def test_a_line_that_a_message_of_the_host_cuts_is_printed_whole(capsys):
    said = r'1 of \036{"ready": 1}\n2\n\036{"place": {}}\nno end\036{"ended": 0}\n'
    machine = _Machine(0, ProcessChannel(["printf", said], label="[0] "))
    while "ended" not in machine.facts:
        machine.read()
    machine.channel.close(1.0)
    assert machine.facts == {"ready": 1, "place": {}, "ended": 0}
    assert capsys.readouterr().out.splitlines() == ["[0] 1 of 2", "[0] no end"]
