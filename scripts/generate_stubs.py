"""Generate the Python stubs of the feature service from ``cache_server/proto``.

Usage: ``python scripts/generate_stubs.py [--out DIR]`` (needs the ``dev`` extra). Without ``--out``
the committed stubs in ``cache_server/generated`` are rewritten; a test compares the two.
"""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "cache_server" / "proto"
# The stubs import each other by this package, so protoc must see the sources under its path.
PACKAGE = Path("cache_server") / "generated"


def generate(out: Path) -> list[Path]:
    """Write the stubs of every .proto file below ``out``/cache_server/generated.

    Returns
    -------
    The files written, sorted.

    Raises
    ------
    RuntimeError: protoc refused a source file (its own message is on stderr).
    ImportError: grpcio-tools is not installed.
    """
    from grpc_tools import protoc

    folder = out / PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(path.name for path in PROTO.glob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={PACKAGE}={PROTO}",
        f"--proto_path={resources.files('grpc_tools') / '_proto'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        *(str(PACKAGE / name) for name in sources),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc failed on {', '.join(sources)} in {PROTO}")
    return sorted(folder.glob("*_pb2*.py"))


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT, help="folder to write below (default: the repository)"
    )
    for path in generate(parser.parse_args(argv).out.resolve()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
