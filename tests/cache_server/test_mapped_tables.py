"""Tables that memory does not hold: the kernel is told that their rows are read alone."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from cache_server import mapped_tables
from cache_server.mapped_tables import read_rows_alone


def reads_around(file: Path) -> bool:
    """Whether the kernel may read around pages of a mapped file (no "rr" among its flags)."""
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if str(file) in part.splitlines()[0]:
            flags = re.search(r"VmFlags:(.*)", part)
            assert flags is not None
            return "rr" not in flags[1].split()
    raise AssertionError(f"{file} is not mapped")


def test_only_what_does_not_fit_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "rows.npy", np.ones((1000, 100), np.float32))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert not read_rows_alone(mapped)
    assert reads_around(tmp_path / "rows.npy")
    monkeypatch.setattr(mapped_tables, "available_memory", lambda: 700_000)
    assert read_rows_alone(np.asarray(mapped)[:, :])
    assert not reads_around(tmp_path / "rows.npy")
    assert mapped.sum() == 100_000
    # What is in memory has no kernel to be told.
    assert not read_rows_alone(np.ones((1000, 100), np.float32))
    assert mmap.MADV_RANDOM > 0
