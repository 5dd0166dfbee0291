"""What the doctor says of feature servers that are right, wrong, silent, or not there."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cache_server.store.manifest import TableSpec
from hopper.doctor import configuration, servers
from hopper.partition import partition_graph
from tests.cache_server.test_security import TOKEN, issue
from tests.doctor.conftest import find, wrongs


def servers_option(*addresses: Any) -> tuple[str, str]:
    return "--cluster.servers", json.dumps(addresses)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that takes connections, which a test may answer or not."""
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        yield server_socket


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_reachable_servers_are_fine_with_their_rates(look, addresses):
    findings = look(*servers_option(*addresses))
    assert wrongs(findings) == []
    for number, server_address in enumerate(addresses):
        line = find(findings, f"server {number}, {server_address}").found
        assert f"serves part {number} of 2" in line
        for text in ("round trip ", "MiB of features/item at ", " Gbit/s"):
            assert text in line


def test_replicas_are_asked_each(look, addresses):
    first, second = addresses
    findings = look(*servers_option([first, second], second))
    assert find(findings, f"server 0, {first}").state == "fine"
    assert "it is server 1 of 2, expected 0 of 2" in find(findings, f"server 0, {second}").found
    assert find(findings, f"server 1, {second}").state == "fine"


def test_too_few_servers_are_told(look, addresses):
    assert "1 addresses" in find(look(*servers_option(addresses[0])), "cluster.servers").found


def test_servers_of_another_division_are_told(look, addresses, community_graph, tmp_path):
    partition_graph(community_graph, tmp_path / "others", 2, "random", seed=5)
    findings = look(*servers_option(*addresses), "--data.partitioned", str(tmp_path / "others"))
    assert "it serves the division " in find(findings, "server 0").found


def test_a_closed_port_is_told(look, addresses):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        closed_address = address(listener)
    findings = look(*servers_option(addresses[0], closed_address))
    assert find(findings, "server 0").state == "fine"
    assert (
        "cannot be reached: Connection refused"
        in find(findings, f"server 1, {closed_address}").found
    )


def test_a_server_that_never_answers_is_not_waited_for(look, addresses, listener):
    """The servers that answer are examined all the same."""
    findings = look(*servers_option(addresses[0], address(listener)), limit=1.5)
    assert find(findings, "server 0").found
    silent = find(findings, f"server 1, {address(listener)}")
    assert silent.state == "wrong"
    assert silent.advice


def test_a_port_that_speaks_something_else_is_wrong(look, addresses, listener):
    def answer() -> None:
        # Until the listener is closed.
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 9)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        findings = look(*servers_option(addresses[0], address(listener)), limit=3.0)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert find(findings, f"server 1, {address(listener)}").state == "wrong"


@pytest.mark.parametrize("written", ["nowhere", "127.0.0.1:port", ":2000", "127.0.0.1:99999"])
def test_text_that_is_no_address_is_told(look, addresses, written):
    findings = look(*servers_option(addresses[0], written), "--cluster.insecure", "true")
    assert find(findings, f"server 1, {written}").found == "expected host:port"


@pytest.mark.parametrize("hangs", [False, True])
def test_names_that_lead_nowhere_are_wrong(look, addresses, monkeypatch, request, hangs):
    done, real = threading.Event(), socket.getaddrinfo
    request.addfinalizer(done.set)

    def look_up(host: Any, *arguments: Any, **keywords: Any) -> Any:
        if host != "node9":
            return real(host, *arguments, **keywords)
        if hangs:
            done.wait()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(configuration, "_NAMES_SECONDS", 0.5)
    findings = look(*servers_option(addresses[0], "node9:2000"), limit=1.0 if hangs else 20.0)
    finding = find(findings, "server 1, node9:2000")
    assert finding.state == "wrong"
    assert ("leads nowhere: Name or service" in finding.found) != hangs
    # Who does not know where a name leads does not know it to be this machine.
    assert find(findings, "certificates and token").state == "wrong"


def test_a_server_that_refuses_to_send_its_rows_is_wrong(look, addresses, monkeypatch):
    """It describes itself, and refuses rows of what the probe takes for its widest table."""
    table = TableSpec(kind="features", type="nobody", first_id=0, count=1, dim=1, dtype="float32")
    monkeypatch.setattr(servers, "_widest", lambda _: table)
    finding = find(look(*servers_option(*addresses)), "server 0")
    assert finding.state == "wrong"
    assert "FetchRows features/nobody" in finding.found


def test_other_versions_are_told(look, addresses, monkeypatch):

    monkeypatch.setattr(servers, "version", lambda _: "99.0")
    warnings = [
        finding.found for finding in look(*servers_option(*addresses)) if finding.state == "warning"
    ]
    assert sum("there, 99.0 here" in warning for warning in warnings) == 2


def test_servers_with_tls_and_tokens(look, parts, serve_partitions, tmp_path_factory):

    folder = tmp_path_factory.mktemp("certificates")
    issue(folder, "own")
    issue(folder, "other")
    (folder / "token").write_text(TOKEN)
    (folder / "other-token").write_text(TOKEN[::-1])
    pair = [f"--tls-{part}={folder}/own-{part}.pem" for part in ("certificate", "key")]
    secured = servers_option(*serve_partitions(parts, 2, *pair, f"--token-file={folder}/token"))
    authority = ("--cluster.tls_ca", f"{folder}/own-ca.pem")
    token = ("--cluster.token_file", f"{folder}/token")

    findings = look(*secured, *authority, *token)
    assert wrongs(findings) == []
    assert "certificate valid until " in find(findings, "server 1").found

    other_token = ("--cluster.token_file", f"{folder}/other-token")
    findings = look(*secured, *authority, *other_token)
    assert "UNAUTHENTICATED: expected this cluster's token" in find(findings, "server 0").found
    other_authority = ("--cluster.tls_ca", f"{folder}/other-ca.pem")
    findings = look(*secured, *other_authority, *token)
    assert "its certificate is refused: " in find(findings, "server 0").found
    findings = look(*secured, *token, limit=1.0)
    assert find(findings, "server 0").state == "wrong"


def test_ranks_on_loopback_reach_no_other_machine(look, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    finding = find(look(*servers_option("192.0.2.1:9", "192.0.2.2:9"), limit=0.5), "network of")
    assert finding.state == "wrong"
    assert finding.found == "GLOO_SOCKET_IFNAME: no other machine reaches lo (127.0.0.1)"
    assert finding.advice.startswith("GLOO_SOCKET_IFNAME=<interface")
