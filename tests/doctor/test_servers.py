"""What the doctor says of feature servers that are right, wrong, silent, or not there, and of
certificates, keys and tokens."""

import datetime
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trustme

from cache_server.store.manifest import TableSpec
from hopper.doctor import configuration, servers
from hopper.doctor.certificates import authorities_of, read_validity
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
    finding = find(findings, f"server 1, {closed_address}")
    assert "cannot be reached: Connection refused" in finding.found


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
    findings = look(*servers_option(*addresses))
    warnings = [finding.found for finding in findings if finding.state == "warning"]
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


# Certificates, keys and tokens

DAY = datetime.timedelta(days=1)


def issue_for(folder: Path, days: float, host: str = "127.0.0.1") -> list[str]:
    """Write certificates into a folder; the machine's own is valid for so many days. Returns the
    words of the command line that name them."""
    now = datetime.datetime.now(datetime.UTC)
    issue(folder, "own", (host,), not_before=now - 60 * DAY, not_after=now + days * DAY)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    files = {f"tls_{part}": f"own-{part}.pem" for part in ("ca", "certificate", "key")}
    files["token_file"] = "token"
    words = ((f"--cluster.{key}", f"{folder}/{file}") for key, file in files.items())
    return list(chain.from_iterable(words))


def test_dates_are_read_as_ssl_reads_them(tmp_path):
    issue_for(tmp_path, 100.5)
    own = f"{tmp_path}/own"
    assert int(read_validity(f"{own}-certificate.pem", f"{own}-key.pem").days) == 100
    assert [authority.days > 1000 for authority in authorities_of(f"{own}-ca.pem")] == [True]


def test_valid_certificates_and_tokens_are_fine(look, tmp_path):
    findings = look(*issue_for(tmp_path, 100.5))
    assert wrongs(findings) == []
    assert "100 days from now" in find(findings, "cluster.tls_certificate").found
    for key in ("tls_ca", "tls_key", "token_file"):
        assert find(findings, f"cluster.{key}").state == "fine"


def test_certificates_that_have_ended_or_end_soon_are_told(look, tmp_path):
    [line] = wrongs(look(*issue_for(tmp_path, -3.2)))
    assert f"cluster.tls_certificate: {tmp_path}/own-certificate.pem: not vouched for by " in line
    (soon := tmp_path / "soon").mkdir()
    finding = find(look(*issue_for(soon, 9.5)), "cluster.tls_certificate")
    assert finding.state == "warning"
    assert " days from now" in finding.found
    assert "issued anew" in finding.advice


def test_a_certificate_of_another_name_or_authority_is_wrong(look, tmp_path):
    """Servers that a run starts on this machine are reached under 127.0.0.1."""
    words = issue_for(tmp_path, 100, "node0")
    finding = find(look(*words), "cluster.tls_certificate")
    assert finding.state == "wrong"
    assert "127.0.0.1" in finding.found
    trustme.CA().cert_pem.write_to_path(tmp_path / "own-ca.pem")
    [line] = wrongs(look(*words))
    assert f"cluster.tls_certificate: {tmp_path}/own-certificate.pem: not vouched for by " in line


def test_certificates_and_keys_that_cannot_be_used_are_named(look, tmp_path):
    words = issue_for(tmp_path, 100)
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(tmp_path / "own-key.pem")
    assert len(lines := wrongs(look(*words))) == 1
    assert "cluster.tls_certificate, tls_key: " in lines[0]
    (tmp_path / "own-ca.pem").unlink()
    assert "cluster.tls_ca: " in wrongs(look(*words))[0]


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_token_that_others_can_read_is_a_warning(look, tmp_path, mode):
    words = issue_for(tmp_path, 100)
    (tmp_path / "token").chmod(mode)
    finding = find(look(*words), "cluster.token_file")
    assert (finding.state, finding.advice) == ("warning", f"chmod 600 {tmp_path}/token")


def test_servers_elsewhere_want_certificates(look):
    # Of a network for documents, where nobody answers.
    elsewhere = ("--cluster.servers", '["192.0.2.7:1", "192.0.2.8:1"]')
    findings = look(*elsewhere, limit=0.5)
    assert "insecure: talking to 192.0.2.7:1" in find(findings, "certificates and token").found
    assert find(findings, "server 0").state == "wrong"
    insecure = look(*elsewhere, "--cluster.insecure", "true", limit=0.5)
    assert find(insecure, "certificates and token").state == "warning"
    # Ranks of the other server are not this machine's.
    assert "1 rank here (cluster.ranks_per_server)" in find(insecure, "threads").found
