"""``python -m cache_server PARTITIONED --server I --listen HOST:PORT`` runs one feature server."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

from cache_server.errors import CacheServerError, SourceError
from cache_server.events import events
from cache_server.limits import (
    DEFAULT_DRAIN_SECONDS,
    DEFAULT_SEND_SECONDS,
    DEFAULT_THREADS,
    IDS_PER_REQUEST,
    parse_size,
)

SECURITY_OPTIONS: Final = {
    "tls-ca": "PEM certificates of the authorities that must have signed clients' certificates",
    "tls-certificate": "PEM certificate of this server, for TLS",
    "tls-key": "PEM key of that certificate",
    "token-file": "file with the token that every request must carry",
}
"""options that name files"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("partitioned", type=Path, help="directory that holds server-<I>/")

    def add(name: str, text: str, **options: Any) -> None:
        parser.add_argument(f"--{name}", help=text, **options)

    add("server", "index, from 0", type=int, required=True, metavar="I")
    add("listen", "port 0: any free one", required=True, metavar="HOST:PORT")
    add("port-file", "JSON with the bound address, once serving", type=Path)
    text = "stop when process PID ends, which must have started this one"
    add("die-with-parent", text, type=_positive, metavar="PID")
    add("threads", "requests answered at once", type=_positive, default=DEFAULT_THREADS)
    seconds: dict[str, Any] = {"type": _seconds, "metavar": "SECONDS"}
    text = "how long running requests may take after SIGTERM"
    add("drain", text, default=DEFAULT_DRAIN_SECONDS, **seconds)
    text = "how long a client may leave a chunk of about 1 MiB unread before its reply is ended"
    add("send-timeout", text, default=DEFAULT_SEND_SECONDS, **seconds)
    text = "most ids that one request may ask for"
    add("ids-per-request", text, type=_positive, default=IDS_PER_REQUEST)
    text = (
        "memory for running replies; calls beyond it are refused and may be repeated (default 1G, "
        "or a quarter of the available memory if that is less)"
    )
    add("memory-in-flight", text, type=_size, metavar="SIZE")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    text = "class that provides the features of a node type instead of a file; may be repeated"
    add("features", text, type=_source, metavar="TYPE=package.module:Class", **repeated)
    text = "keywords for the constructor of that class"
    add("features-options", text, type=_source_options, metavar="TYPE={JSON}", **repeated)
    text = "form of messages on stderr: text for warnings, json for all events, one a line"
    add("log-format", text, choices=("text", "json"), default="text")
    text = "where Prometheus reads metrics; port 0: any free one"
    add("metrics", text, default="", metavar="HOST:PORT")
    for key, text in SECURITY_OPTIONS.items():
        add(key, text, default="", metavar="FILE")
    add("insecure", "listen beyond this machine's loopback without TLS", action="store_true")


def main(argv: list[str] | None = None) -> int:
    """Run a server until a signal stops it; return 0, or 2 if it could not start."""
    parser = argparse.ArgumentParser(
        prog="cache_server", description="Serve one server's rows of a partitioned graph."
    )
    add_options(parser)
    return serve_with(parser.parse_args(argv))


def serve_with(options: argparse.Namespace) -> int:
    """Run a server with parsed options, and return the exit status as :func:`main` does."""
    # These take a second to import, and --help needs none of them.
    from cache_server.security import Security
    from cache_server.service.server import serve
    from cache_server.store.row_source import SourceRequest

    events.set_format(options.log_format, process="server", server=options.server)
    files = (key.replace("-", "_") for key in SECURITY_OPTIONS)
    named_files = {file: getattr(options, file) for file in files}
    try:
        names, keywords = dict(options.features), dict(options.features_options)
        for node_type in keywords.keys() - names.keys():
            raise SourceError(f"--features-options: expected a type of --features, got {node_type}")
        sources = {of: SourceRequest(name, keywords.get(of, {})) for of, name in names.items()}
        serve(options, Security(**named_files, insecure=options.insecure), sources)
    except (CacheServerError, OSError) as error:
        events.fail("error", f"error: {error}")
        return 2
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, found {text!r}")
    return int(text)


def _size(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise argparse.ArgumentTypeError(f"expected a number and a unit (K, M, G), found {text!r}")
    return size


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds >= 0, found {text!r}")
    return value


def _source(text: str) -> tuple[str, str]:
    node_type, _, name = text.partition("=")
    if not all(name.partition(":")):
        raise argparse.ArgumentTypeError(f"expected TYPE=package.module:Class, found {text!r:.100}")
    return node_type, name


def _source_options(text: str) -> tuple[str, dict[str, Any]]:
    node_type, _, keywords = text.partition("=")
    try:
        options = json.loads(keywords)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"expected TYPE={{JSON}}, found {text!r:.100}")
    return node_type, options


if __name__ == "__main__":
    sys.exit(main())
