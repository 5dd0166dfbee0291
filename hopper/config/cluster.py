"""``[cluster]``: the machines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hopper.config.section import LocalPath, Positive, PositiveNumber, Section, accept


def _join_replicas(entry: Any) -> Any:
    is_list = isinstance(entry, list) and entry and all(isinstance(item, str) for item in entry)
    return ",".join(entry) if is_list else entry


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return not text or bool(host and port.isdecimal() and 0 < int(port) < 1 << 16)


_Replicas = Annotated[
    str,
    BeforeValidator(
        _join_replicas,
        json_schema_input_type=str | Annotated[list[str], Field(min_length=1)],
    ),
]
Address = Annotated[str, accept(_is_address, "expected HOST:PORT with a port from 1 to 65535")]


class Cluster(Section):
    """``[cluster]``: The machines."""

    servers: list[_Replicas] = Field(default=[])
    """The addresses of the feature servers, as "host:port", in order of server. An entry may be a
    list of addresses that serve the same part, or one text with commas between them. A rank asks
    one of them, and another one if it fails. Empty = the run starts feature servers on this
    machine."""
    ranks_per_server: Positive = 1
    """Training processes on each machine."""
    share_gpus: bool = False
    """Whether several ranks of a machine may train on one GPU. NCCL does not allow that, so
    messages between ranks then go through host memory."""
    timeout_seconds: PositiveNumber = 60.0
    """How long one process waits for another, in seconds."""
    start_timeout_seconds: PositiveNumber = 120.0
    """How long servers and ranks may take to start, in seconds."""
    tls_ca: LocalPath = ""
    """A PEM file of trusted certificates. One of them must have signed the certificate of each
    feature server, and ``tls_certificate``. If it is set, rows travel over TLS."""
    tls_certificate: LocalPath = ""
    """A PEM file with the certificate of this machine. Its feature server uses it, and its ranks
    show it to other servers."""
    tls_key: LocalPath = ""
    """A PEM file with the key of ``tls_certificate``."""
    token_file: LocalPath = ""
    """A file with the token that every request to a feature server must carry."""
    insecure: bool = False
    """Whether machines may talk without TLS. Use it only on a network that nobody else can
    reach."""
    feature_wire: Literal["stored", "float16", "bfloat16", "int8"] = "stored"
    """The format in which float32 feature rows travel between servers. "stored" sends them as they
    are stored. The others round the numbers, so they are approximations. "int8" has one scale for
    each row. summary.json reports the error."""
    interface: str = ""
    """The network interface whose counters are read before and after each epoch. Empty = none."""
    metrics: Address = ""
    """The HOST:PORT where Prometheus reads the metrics of a machine's first rank. Each further rank
    uses the next port. Empty = no metrics. See docs/howto/watching.md."""
    log_format: Literal["text", "json"] = "text"
    """The format of the messages on stderr of ranks, the launcher and the servers that it starts.
    "text" prints warnings for people. "json" prints all events, one line of JSON each."""
    server_metrics: Address = ""
    """The HOST:PORT where Prometheus reads the metrics of the first feature server that the run
    starts. Each further server uses the next port. Empty = no metrics."""
