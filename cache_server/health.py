"""``python -m cache_server.health HOST:PORT ...`` checks whether a feature server serves.

Kubernetes' built-in gRPC probe supports neither TLS nor tokens. This probe asks the same health
service with both.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from cache_server.__main__ import SECURITY_OPTIONS
from cache_server.client import FeatureClient
from cache_server.errors import CacheServerError
from cache_server.security import Security

_SECONDS: Final = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Ask a server once; return 0 if it serves, otherwise 1 with a line on stderr."""
    parser = argparse.ArgumentParser(prog="cache_server.health")
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--timeout", type=float, default=_SECONDS, metavar="SECONDS")
    for key in SECURITY_OPTIONS:
        parser.add_argument(f"--{key}", metavar="FILE", default="")
    files = vars(parser.parse_args(arguments))
    address, seconds = files.pop("address"), files.pop("timeout")
    try:
        with FeatureClient([address], deadline=seconds, security=Security(**files)) as client:
            reason = "" if client.is_serving(0) else "does not serve"
    except CacheServerError as error:
        reason = str(error)
    if reason:
        print(f"error: {address}: {reason}", file=sys.stderr)
    return int(bool(reason))


if __name__ == "__main__":
    sys.exit(main())
