"""``python -m cache_server PARTITIONED --server I --listen HOST:PORT``: one feature server."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Final

from cache_server.errors import CacheServerError
from cache_server.events import events
from cache_server.flow import DEFAULT_SEND_SECONDS
from cache_server.row_source import parse_requests
from cache_server.security import Security
from cache_server.server import DEFAULT_DRAIN_SECONDS, DEFAULT_THREADS, serve
from cache_server.size import parse_size
from cache_server.wire import IDS_PER_REQUEST

SECURITY_OPTIONS: Final = {
    "tls-ca": "PEM certificates that those of clients have to be vouched for by",
    "tls-certificate": "PEM certificate of this server, for TLS",
    "tls-key": "its key",
    "token-file": "what every request has to carry",
}
"""files that are read again when they change"""


def build_parser(add_help: bool = True) -> argparse.ArgumentParser:
    """The command's options; without ``-h``, to be the parent of a parser that has its own."""
    parser = argparse.ArgumentParser(
        prog="cache_server",
        description="Serve one server's rows of a partitioned graph.",
        add_help=add_help,
    )
    parser.add_argument("partitioned", type=Path, help="directory that holds server-<I>/")
    parser.add_argument("--server", type=int, required=True, metavar="I", help="index, from 0")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="port 0: any free one")
    parser.add_argument("--port-file", type=Path, help="JSON with the bound address, once serving")
    parser.add_argument(
        "--die-with-parent",
        type=_positive,
        metavar="PID",
        help="stop when the process PID, which has started this one, ends",
    )
    parser.add_argument(
        "--threads", type=_positive, default=DEFAULT_THREADS, help="requests answered at once"
    )
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=DEFAULT_DRAIN_SECONDS,
        metavar="SECONDS",
        help="how long running requests may take after SIGTERM",
    )
    parser.add_argument(
        "--send-timeout",
        type=_seconds,
        default=DEFAULT_SEND_SECONDS,
        metavar="SECONDS",
        help="how long a reader may leave a chunk of about 1 MiB unread, before it is given up",
    )
    parser.add_argument(
        "--ids-per-request", type=_positive, default=IDS_PER_REQUEST, help="limit of one request"
    )
    parser.add_argument(
        "--features",
        action="append",
        default=[],
        metavar="TYPE=package.module:Class",
        help="where the features of a node type come from instead of a file; may be repeated",
    )
    parser.add_argument(
        "--features-options",
        action="append",
        default=[],
        metavar="TYPE={JSON}",
        help="keywords for the constructor of that class",
    )
    parser.add_argument(
        "--memory-in-flight",
        type=_size,
        metavar="SIZE",
        help="of replies under way and waiting requests; beyond it calls are refused for a moment "
        "(default 1G, or a quarter of the memory that can be had, if that is less)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="of what is told on stderr: warnings for people, or all events, a line of JSON each",
    )
    parser.add_argument(
        "--metrics",
        default="",
        metavar="HOST:PORT",
        help="where Prometheus reads metrics; port 0: any free one",
    )
    for key, told in SECURITY_OPTIONS.items():
        parser.add_argument(f"--{key}", metavar="FILE", default="", help=told)
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine's loopback without TLS",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a server until it is told to stop.

    Returns
    -------
    0 after a graceful end; 2 if nothing could be served, with the reason on stderr.
    """
    return serve_with(build_parser().parse_args(argv))


def serve_with(options: argparse.Namespace) -> int:
    """Run a server with parsed options; returns what :func:`main` does."""
    events.set_format(options.log_format, process="server", server=options.server)
    try:
        serve(
            options.partitioned,
            options.server,
            options.listen,
            port_file=options.port_file,
            die_with_parent=options.die_with_parent,
            threads=options.threads,
            drain_seconds=options.drain,
            ids_per_request=options.ids_per_request,
            send_seconds=options.send_timeout,
            sources=parse_requests(options.features, options.features_options),
            security=Security(
                options.tls_ca,
                options.tls_certificate,
                options.tls_key,
                options.token_file,
                options.insecure,
            ),
            metrics=options.metrics,
            memory=options.memory_in_flight,
        )
    except (CacheServerError, OSError) as error:
        events.fail("error", f"error: {error}")
        return 2
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, found {text!r}")
    return int(text)


def _size(text: str) -> int:
    found = parse_size(text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a number and a unit (K, M, G), found {text!r}")
    return found


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds >= 0, found {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
