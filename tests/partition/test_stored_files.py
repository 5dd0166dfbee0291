"""Whole files of a partitioned directory: links where they can be, else copies."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hopper.partition.stored_files import StoredFiles
from hopper.timing.phases import Silent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "graph" / "rows.npy"
    file.parent.mkdir()
    file.write_bytes(os.urandom(100_003))
    return file


def test_a_link_has_the_inode_of_its_source(source: Path, tmp_path: Path) -> None:
    files, target = StoredFiles("link"), tmp_path / "parts" / "server-0" / "rows.npy"
    name = tmp_path / "name.npy"
    name.symlink_to(source)
    files.store(name, target)
    assert not target.is_symlink()
    assert target.stat().st_ino == source.stat().st_ino
    assert (files.bytes_to_write, files.linked_bytes) == (0, 100_003)
    with pytest.raises(FileExistsError):
        files.store(source, target)


def test_another_file_system_gets_one_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    files, progress, written = StoredFiles("link"), Silent(), list[int]()
    monkeypatch.setattr(progress, "advance", written.append)
    far_file = shared / f"hopper-test-{os.getpid()}.npy"
    try:
        far_file.write_bytes(source.read_bytes())
        targets = [tmp_path / f"server-{server}" / "rows.npy" for server in range(3)]
        for target in targets:
            files.store(far_file, target)
        assert (files.bytes_to_write, files.linked_bytes) == (100_003, 0)
        files.write_copies(progress)
        assert sum(written) == 100_003
        assert all(target.read_bytes() == source.read_bytes() for target in targets)
        assert len({target.stat().st_ino for target in targets}) == 1
    finally:
        far_file.unlink()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_files_that_cannot_be_linked_are_copied(
    code: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph on another file system is copied once, if links within the destination work."""
    files, progress, link = StoredFiles("link"), Silent(), os.link
    targets, copies = [tmp_path / "a.npy", tmp_path / "b.npy"], 1 if code == errno.EXDEV else 2

    def refuse(first: Path, second: Path) -> None:
        if copies == 2 or first == source:
            raise OSError(code, os.strerror(code))
        link(first, second)

    monkeypatch.setattr(os, "link", refuse)
    written: list[int] = []
    monkeypatch.setattr(progress, "advance", written.append)
    for target in targets:
        files.store(source, target)
    assert (files.bytes_to_write, files.linked_bytes) == (copies * 100_003, 0)
    files.write_copies(progress)
    assert written == [100_003] * copies
    assert all(target.read_bytes() == source.read_bytes() for target in targets)
    assert len({path.stat().st_ino for path in (source, *targets)}) == 1 + copies


def test_a_full_disk_is_an_error_that_names_the_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = StoredFiles("copy")
    files.store(source, tmp_path / "copy.npy")
    monkeypatch.setattr(os, "sendfile", refuse)
    with pytest.raises(OSError, match=r"No space left on device: .*copy\.npy"):
        files.write_copies(Silent())
