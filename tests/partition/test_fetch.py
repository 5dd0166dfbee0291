"""``hopper dataset fetch``: partitioned directories from an S3 server and from another folder."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from hopper.cli import main
from hopper.errors import GraphError, HopperError, RequestError
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.checksums import check_rows, check_structure
from hopper.partition.fetch import fetch_partitioned


@pytest.fixture(scope="module")
def parts(community_graph, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fetch") / "parts"
    partition_graph(community_graph, folder, 3, "random")
    return folder


@pytest.fixture(scope="module")
def address(parts, bucket) -> str:
    system, root = fsspec.core.url_to_fs(f"{bucket}/data/parts")
    system.put(f"{parts}/", f"{root}/", recursive=True)
    return f"{bucket}/data/parts"


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_all_of_a_directory(address, parts, tmp_path, capsys):
    out = tmp_path / "new" / "parts"
    assert main(["dataset", "fetch", address, "--out", str(out)]) == 0
    files = files_of(parts)
    assert files_of(out) == files
    nbytes = sum(map(len, files.values())) - len(files["checksums.json"])
    assert capsys.readouterr().out == f"{out}: {nbytes:,} bytes\n"
    PartitionedGraph.open(out)
    # What is there and whole is kept.
    times = {file: file.stat().st_mtime_ns for file in out.rglob("server-*/**/*")}
    (out / "graph.json").write_text("{}")
    fetch_partitioned(address, out)
    assert files_of(out) == files
    assert {file: file.stat().st_mtime_ns for file in times} == times


def test_of_several_at_once_one_copies_and_the_others_find_all(parts, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        sizes = list(pool.map(fetch_partitioned, [str(parts)] * 3, [tmp_path / "out"] * 3))
    assert len(set(sizes)) == 1
    assert files_of(tmp_path / "out") == files_of(parts)


@pytest.mark.parametrize("remote", [True, False])
def test_what_one_server_needs(remote, address, parts, tmp_path):
    fetch_partitioned(address if remote else str(parts), tmp_path / "one", [1])
    found = files_of(tmp_path / "one")
    expected = files_of(parts)
    others = ("server-0/", "server-2/")
    assert found == {name: b for name, b in expected.items() if not name.startswith(others)}
    check_structure(tmp_path / "one", [1])
    assert check_rows(tmp_path / "one", [1])


def test_an_altered_file_is_not_put_in_place_and_a_repaired_one_completes_the_copy(
    address, parts, tmp_path
):
    out, name = tmp_path / "out", "splits/train.npy"
    system, path = fsspec.core.url_to_fs(f"{address}/{name}")
    system.pipe_file(path, b"altered")
    try:
        with pytest.raises(GraphError, match=rf"{address}/{name}: altered since it was written"):
            fetch_partitioned(address, out)
        system.rm_file(path)
        with pytest.raises(GraphError, match=rf"{address}/{name}: missing file"):
            fetch_partitioned(address, out)
    finally:
        system.put_file(str(parts / name), path)
    assert not (out / name).exists()
    with pytest.raises(GraphError):
        PartitionedGraph.open(out)
    fetch_partitioned(address, out)
    assert files_of(out) == files_of(parts)


def test_refusals(address, bucket, parts, tmp_path):
    def assert_refused(kind: type[HopperError], match: str, *arguments: object) -> None:
        with pytest.raises(kind, match=match):
            fetch_partitioned(*arguments)  # type: ignore[arg-type]  # what a test gives

    new = tmp_path / "new"
    assert_refused(GraphError, "/none/checksums.json: missing file", f"{bucket}/none", new)
    assert_refused(RequestError, "--server 3: expected 0 to 2", address, new, [3])
    assert_refused(RequestError, "expected a path on this machine", address, f"{bucket}/copy")
    assert_refused(RequestError, "expected an address that fsspec can reach", "nosuch://a/b", new)
    assert_refused(RequestError, "ftp://me@127.0.0.1", "ftp://me:secret@127.0.0.1:1/parts", new)
    (tmp_path / "file").touch()
    assert_refused(RequestError, "it is a file", address, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert_refused(RequestError, "full/mine: not of this directory", address, tmp_path / "full")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "full"}
