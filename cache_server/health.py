"""``python -m cache_server.health HOST:PORT ...`` checks whether a feature server serves.

Kubernetes' built-in gRPC probe supports neither TLS nor tokens. This probe asks the same health
service with both.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

import grpc

from cache_server.connection import Connection
from cache_server.errors import SecurityError
from cache_server.generated import features_pb2
from cache_server.security import Security, Token
from cache_server.wire import CHECK, SERVICE

_SECONDS: Final = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Ask a server once; return 0 if it serves, otherwise 1 with a line on stderr."""
    parser = argparse.ArgumentParser(prog="cache_server.health")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--timeout", type=float, default=_SECONDS, metavar="SECONDS")
    for key in ("tls-ca", "tls-certificate", "tls-key", "token-file"):
        parser.add_argument(f"--{key}", metavar="FILE", default="")
    options = parser.parse_args(arguments)
    security = Security(
        options.tls_ca, options.tls_certificate, options.tls_key, options.token_file
    )
    try:
        security.check_client([options.address])
        token = Token(options.token_file) if options.token_file else None
        connection = Connection(options.address, security, token)
        request = features_pb2.HealthCheckRequest(service=SERVICE)
        try:
            reply = connection.call(CHECK, request, options.timeout)
        finally:
            connection.close()
    except (SecurityError, grpc.RpcError) as error:
        reason = error.details() if isinstance(error, grpc.RpcError) else error
        print(f"error: {options.address}: {reason}", file=sys.stderr)
        return 1
    if reply.status != features_pb2.HealthCheckResponse.SERVING:
        print(f"error: {options.address}: does not serve", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
