"""Generate the Python modules of the feature service from ``cache_server/proto``.

Usage: ``python scripts/generate_stubs.py [--out DIR]`` (needs the ``dev`` extra). Without ``--out``
the committed modules in ``cache_server/generated`` are rewritten; a test compares the two.

protoc's own ``features_pb2.py`` refuses every protobuf that is older than its compiler, which other
packages of the same environment may need. What is written instead holds the file's descriptor and
makes the same classes of it, with any protobuf from 4.25 on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "cache_server" / "proto"
# protoc must see the sources under the path of the package that its modules are in.
PACKAGE = Path("cache_server") / "generated"
TEMPLATE = '''"""Messages of the feature service.

Made by ``scripts/generate_stubs.py`` from {source}.
"""

from typing import Any

from google.protobuf import descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
{descriptor}
)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{{name}}"))


{messages}
'''
BYTES_PER_LINE = 40


def generate(out: Path) -> list[Path]:
    """Write the modules of every .proto file below ``out``/cache_server/generated.

    Returns
    -------
    The files written, sorted.

    Raises
    ------
    RuntimeError: protoc refused a source file (its own message is on stderr).
    ImportError: grpcio-tools is not installed.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    folder = out / PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(path.name for path in PROTO.glob("*.proto"))
    with tempfile.NamedTemporaryFile(suffix=".binpb") as described:
        arguments = [
            "protoc",
            f"--proto_path={PACKAGE}={PROTO}",
            f"--proto_path={resources.files('grpc_tools') / '_proto'}",
            f"--descriptor_set_out={described.name}",
            *(str(PACKAGE / name) for name in sources),
        ]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc failed on {', '.join(sources)} in {PROTO}")
        files = FileDescriptorSet.FromString(Path(described.name).read_bytes()).file
    for file in files:
        source = Path(file.name)
        module = TEMPLATE.format(
            source=f"{PROTO.relative_to(ROOT)}/{source.name}",
            descriptor=_as_literal(file.SerializeToString(deterministic=True)),
            package=file.package,
            messages="\n".join(f'{m.name} = _message("{m.name}")' for m in file.message_type),
        )
        (out / source.with_name(f"{source.stem}_pb2.py")).write_text(module)
    return sorted(folder.glob("*_pb2.py"))


def _as_literal(data: bytes) -> str:
    """Bytes as the lines of a Python literal."""
    starts = range(0, len(data), BYTES_PER_LINE)
    return "\n".join(f"    {data[first : first + BYTES_PER_LINE]!r}" for first in starts)


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
