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
    made_by = re.search(r"# Made by grpcio-tools (.+)", stub).group(1)
    if version("grpcio-tools") != made_by:
        pytest.skip(f"stubs are made by grpcio-tools {made_by}; {version('grpcio-tools')} is here")
    path = REPOSITORY / "scripts" / "generate_stubs.py"
    spec = importlib.util.spec_from_file_location("generate_stubs", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.generate(tmp_path)
    assert [file.name for file in made] == sorted(f.name for f in committed.glob("*_pb2*.py"))
    for file in made:
        assert file.read_text() == (committed / file.name).read_text(), file.name
