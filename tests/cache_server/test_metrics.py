"""A server tells its metrics to those who may ask for rows, and servers and clients log events."""

import json
import re
import socket
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cache_server.client import FeatureClient
from cache_server.errors import (
    InvalidRequest,
    ListenError,
    SecurityError,
    ServerFault,
    ServerUnavailable,
)
from cache_server.events import Events, events
from cache_server.security import Security
from cache_server.service.flow import FlowControl
from cache_server.service.metrics import MetricsPort, ServerMetrics
from cache_server.wire import DESCRIBE, FETCH_ROWS
from tests.cache_server.conftest import fetch
from tests.cache_server.test_security import OTHER, TOKEN, issue

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "watching.md"


def scrape(
    address: str, token: str = "", context: ssl.SSLContext | None = None
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by its name and labels, in order of label."""
    scheme = "http" if context is None else "https"
    request = urllib.request.Request(f"{scheme}://{address}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=20, context=context) as reply:
        text = reply.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def named_in(page: Path, prefix: str) -> set[str]:
    """Return the metrics in the first column of the page's tables."""
    names = re.findall(r"^\| `(\w+)", page.read_text(), re.MULTILINE)
    return {name for name in names if name.startswith(prefix)}


def test_the_page_names_every_metric():
    suffixes = {"counter": "_total", "info": "_info"}
    families = ServerMetrics(0, 1, FlowControl(4, 1, 1.0, 0)).registry.collect()
    names = {family.name + suffixes.get(family.type, "") for family in families}
    assert named_in(PAGE, "hopper_server") == {n for n in names if n.startswith("hopper_server")}


def test_a_server_counts_what_it_answers(partitioned, start):
    server, received = start(partitioned.path, 0, "--metrics", "127.0.0.1:0"), list[int]()
    with FeatureClient(
        [server.address], deadline=20.0, on_transfer=lambda *transfer: received.append(transfer[2])
    ) as client:
        for count in (3, 0, 5):
            fetch(client, np.arange(count))
        assert client.describe(0).server == 0
        with pytest.raises(InvalidRequest):
            fetch(client, [10**6])
    samples = scrape(server.metrics)
    method, of_rows = ("method", "FetchRows"), (("method", "FetchRows"),)
    assert samples["hopper_server_requests_total", (method, ("status", "OK"))] == 2
    assert samples["hopper_server_requests_total", (method, ("status", "INVALID_ARGUMENT"))] == 1
    assert samples["hopper_server_requests_total", (("method", "Describe"), ("status", "OK"))] == 1
    assert samples["hopper_server_rows_sent_total", ()] == 8
    assert samples["hopper_server_bytes_sent_total", of_rows] == sum(received)
    assert samples["hopper_server_request_seconds_count", of_rows] == 3
    assert samples["hopper_server_request_seconds_sum", of_rows] > 0
    assert samples["hopper_server_requests_in_flight", ()] == 0
    assert samples["hopper_server_info", (("server", "0"), ("servers", "3"))] == 1
    assert samples["process_resident_memory_bytes", ()] > 1 << 20
    assert server.stop() == 0
    with pytest.raises(OSError):
        socket.create_connection(server.metrics.split(":"), timeout=5)


def test_whoever_may_ask_for_rows_may_read_metrics(serve, tmp_path):
    """Both sides have a token and certificates, and refusals are counted."""
    issue(tmp_path, "own")
    (tmp_path / "token").write_text(TOKEN)
    ca, *pair = (str(tmp_path / f"own-{name}.pem") for name in ("ca", "certificate", "key"))
    security = Security(ca, *pair, token_file=str(tmp_path / "token"))
    server = serve(security=security, metrics="127.0.0.1:0")
    assert server.metrics_port is not None
    metrics = server.metrics_port.address
    stranger, member = (ssl.create_default_context(cafile=ca) for _ in range(2))
    member.load_cert_chain(*pair)
    # One that says nothing keeps nobody waiting.
    silent = socket.create_connection(metrics.split(":"))
    credentials = security.channel_credentials()
    with silent, grpc.secure_channel(server.address, credentials) as channel:
        for path in (DESCRIBE, "/nobody.knows/this"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(path)(b"", timeout=20)
        with pytest.raises(OSError):
            scrape(metrics, TOKEN, stranger)
        for token in ("", TOKEN[:-1], TOKEN + "x"):
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                scrape(metrics, token, member)
            refused.value.close()
        samples = scrape(metrics, TOKEN, member)
    assert samples["hopper_server_refused_tokens_total", ()] == 2
    status = ("status", "UNAUTHENTICATED")
    for method in ("Describe", "other"):
        assert samples["hopper_server_requests_total", (("method", method), status)] == 1
    registry = CollectorRegistry()
    with pytest.raises(SecurityError, match=r"^insecure: listening on 0\.0\.0\.0:0"):
        MetricsPort(registry, "0.0.0.0:0")
    with pytest.raises(ListenError, match=r"^train: expected HOST:PORT, found 'here'"):
        MetricsPort(registry, "here", name="train")
    port = MetricsPort(registry, "0.0.0.0:0", Security(insecure=True))
    assert scrape(f"127.0.0.1:{port.address.rpartition(':')[2]}") == {}
    port.stop()


def read_entries(text: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in text.splitlines()]
    assert all({"unix", "level", "event", "text"} <= entry.keys() for entry in entries)
    return entries


def test_lines_are_written_at_once_and_repeated_events_are_counted(monkeypatch):
    """Also where Python does not buffer: processes share the file or the terminal."""
    written: list[str] = []

    class Unbuffered:
        write = staticmethod(written.append)
        flush = staticmethod(lambda: None)

    now = 100.0
    monkeypatch.setattr("cache_server.events.time.monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", Unbuffered())
    log = Events()
    log.warn("open secret", "it is open", address="x")
    log.note("retry", "once more")
    log.fail("error", "error: it ends")
    # Lines for people are warnings and errors alone.
    assert re.fullmatch(r"\d\d:\d\d:\d\d  warning: it is open\n", written[0])
    assert written[1:] == ["error: it ends\n"]
    written.clear()
    log.set_format("json", process="rank", rank=3)
    for _ in range(5):
        log.note("retry", "once\nmore", server=1)
    now += 2
    log.note("retry", "at last", server=1)
    assert [text.count("\n") for text in written] == [1, 1]
    first, last = read_entries("".join(written))
    assert (first["level"], first["text"], first["rank"]) == ("info", "once\nmore", 3)
    assert (first["times"], last["times"]) == (1, 5)


@pytest.fixture
def in_json(monkeypatch) -> None:
    monkeypatch.setattr(events, "format", "json")
    monkeypatch.setattr(events, "_last_written", {})


def test_a_server_tells_of_refusals_and_of_no_token(serve, tmp_path, in_json, capfd):
    secured = []
    for token in (TOKEN, OTHER):
        (tmp_path / token).write_text(token)
        (tmp_path / token).chmod(0o600)
        secured.append(Security(token_file=str(tmp_path / token)))
    server = serve(security=secured[0])
    with (
        FeatureClient([server.address], security=secured[1]) as client,
        pytest.raises(ServerFault, match="UNAUTHENTICATED"),
    ):
        client.describe(0)
    header = (("authorization", f"Bearer {TOKEN}"),)
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
        list(channel.unary_stream(FETCH_ROWS)(b"\x0a\x7f", metadata=header, timeout=20))
    text = capfd.readouterr().err
    assert TOKEN not in text
    assert OTHER not in text
    entries = {entry["event"]: entry for entry in read_entries(text)}
    assert entries.keys() == {"refused token", "refused"}
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in entries.values())
    assert entries["refused"]["method"] == "FetchRows"


@pytest.mark.parametrize(
    ("addresses", "event"), [("127.0.0.1:1", "retry"), ("127.0.0.1:1,127.0.0.1:2", "failover")]
)
def test_a_client_tells_of_retries_and_failovers(addresses, event, in_json, capfd):
    with FeatureClient([addresses], deadline=0.3) as client, pytest.raises(ServerUnavailable):
        fetch(client, [0])
    [first, *_] = read_entries(capfd.readouterr().err)
    assert (first["event"], first["server"], first["address"]) == (event, 0, addresses)
    assert "UNAVAILABLE" in first["text"]
