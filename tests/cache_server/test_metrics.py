"""A server tells Prometheus its metrics, but only those who may ask for rows."""

from __future__ import annotations

import re
import socket
import ssl
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
from cache_server.errors import InvalidRequest, ListenError, SecurityError
from cache_server.security import Security
from cache_server.service.flow import FlowControl
from cache_server.service.metrics import ServerMetrics
from cache_server.service.metrics_port import MetricsPort
from cache_server.wire import DESCRIBE
from tests.cache_server.test_security import TOKEN, issue

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "watching.md"
REPOSITORY = PAGE.parents[2]


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


def names_of(registry: CollectorRegistry, prefix: str) -> set[str]:
    """Return the metrics of a registry, as Prometheus calls them."""
    suffixes = {"counter": "_total", "info": "_info"}
    return {
        family.name + suffixes.get(family.type, "")
        for family in registry.collect()
        if family.name.startswith(prefix)
    }


def test_the_page_names_every_metric() -> None:
    metrics = ServerMetrics(0, 1, FlowControl(4, 1.0, 1, 0))
    assert named_in(PAGE, "hopper_server") == names_of(metrics.registry, "hopper_server")


def test_a_server_counts_what_it_answers(partitioned: Any, start: Any) -> None:
    server = start(partitioned.path, 0, "--metrics", "127.0.0.1:0")
    metrics, received = server.metrics, list[int]()
    with FeatureClient(
        [server.address], deadline=20.0, on_transfer=lambda *transfer: received.append(transfer[2])
    ) as client:
        for count in (3, 0, 5):
            ids = np.arange(count)
            out = np.empty((count, 5), np.float32)
            client.fetch_rows("features", "paper", {0: ids}, out, {0: slice(None)})
        assert client.describe(0).server == 0
        ids, out = np.array([10**6]), np.empty((1, 5), np.float32)
        with pytest.raises(InvalidRequest):
            client.fetch_rows("features", "paper", {0: ids}, out, {0: slice(None)})
    samples = scrape(metrics)
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
        socket.create_connection(metrics.split(":"), timeout=5)


def test_whoever_may_ask_for_rows_may_read_metrics(
    partitioned: Any, start: Any, tmp_path: Path
) -> None:
    """Both sides have a token and certificates, and refusals are counted."""
    issue(tmp_path, "own")
    (tmp_path / "token").write_text(TOKEN)
    ca, *pair = (str(tmp_path / f"own-{name}.pem") for name in ("ca", "certificate", "key"))
    words = ["--tls-ca", ca, "--tls-certificate", pair[0], "--tls-key", pair[1]]
    words += ["--token-file", str(tmp_path / "token"), "--metrics", "127.0.0.1:0"]
    server = start(partitioned.path, 0, *words)
    metrics = server.metrics
    stranger, member = (ssl.create_default_context(cafile=ca) for _ in range(2))
    member.load_cert_chain(*pair)
    credentials = Security(ca, *pair).channel_credentials()
    # One that says nothing keeps nobody waiting.
    silent = socket.create_connection(metrics.split(":"))
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


def test_metrics_beyond_loopback_need_certificates() -> None:
    registry = CollectorRegistry()
    with pytest.raises(SecurityError, match=r"^insecure: listening on 0\.0\.0\.0:0"):
        MetricsPort(registry, "0.0.0.0:0")
    with pytest.raises(ListenError, match=r"^train: expected HOST:PORT, found 'here'"):
        MetricsPort(registry, "here", name="train")
    with MetricsPort(registry, "0.0.0.0:0", Security(insecure=True)) as port:
        assert scrape(f"127.0.0.1:{port.address.rpartition(':')[2]}") == {}
