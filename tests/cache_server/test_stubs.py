"""The committed stubs are what protoc makes of the committed .proto files."""

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def test_stubs_are_up_to_date(tmp_path):
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) is not installed")
    committed = REPOSITORY / "cache_server" / "generated"
    stub = (committed / "features_pb2_grpc.py").read_text()
    stub_version = re.search(r"# Made by grpcio-tools (.+)", stub).group(1)
    if version("grpcio-tools") != stub_version:
        pytest.skip(
            f"stubs are made by grpcio-tools {stub_version}; {version('grpcio-tools')} is here"
        )
    path = REPOSITORY / "scripts" / "generate_stubs.py"
    spec = importlib.util.spec_from_file_location("generate_stubs", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    files = script.generate(tmp_path)
    assert [file.name for file in files] == sorted(f.name for f in committed.glob("*_pb2*.py"))
    for file in files:
        assert file.read_text() == (committed / file.name).read_text(), file.name
