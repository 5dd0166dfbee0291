"""A kernel is compiled once, however many processes call it first at the same moment."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError

from cache_server.kernel import kernel
from tests.server_processes import run_python

MODULE = """
from typing import NamedTuple
from cache_server.kernel import kernel

class {name}(NamedTuple):
    left: int
    right: int

@kernel
def add(pair):
    return pair.left + pair.right

@kernel
def twice(x):
    return 2 * x

@kernel
def add_twice(x, y):
    return x + twice(y)
"""
# Copies of one process begin at the same moment: two of them with each of two signatures.
PROCESSES = """
import json, os, sys
import numpy as np
import kernels
from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
ends = []
begin, go = os.pipe()
for number in range(4):
    reads, writes = os.pipe()
    if os.fork():
        ends.append(os.fdopen(reads))
        os.close(writes)
        continue
    os.close(go)
    os.read(begin, 1)
    dtype = ("int64", "float64")[number % 2]
    sums = kernels.add_twice(np.arange(3, dtype=dtype), np.ones(3, dtype))
    stats = (kernels.add_twice.stats, kernels.twice.stats)
    compiled = sum(sum(function.cache_misses.values()) for function in stats)
    os.write(writes, json.dumps([sums.tolist(), compiled]).encode())
    os._exit(0)
os.close(go)
print(json.dumps([json.loads(end.read()) for end in ends]))
"""
LOADS = """
import json, sys
import numpy as np
import kernels

kernels.add_twice(np.arange(3), np.ones(3, np.int64))
misses = sum(kernels.add_twice.stats.cache_misses.values())
print(json.dumps([misses, "numba.np.linalg" in sys.modules]))
"""


def run(folder: Path, program: str) -> list[Any]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run_python("-c", program, PYTHONPATH=path, NUMBA_CACHE_DIR=str(folder / "kept"))
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_each_signature_is_compiled_by_one_process(tmp_path):
    """An index that names a class of another version is made anew."""
    file = tmp_path / "kernels.py"
    file.write_text(MODULE.format(name="Pair"))
    first, again = run(tmp_path, PROCESSES), run(tmp_path, PROCESSES)
    for results in (first, again):
        assert [result[0] for result in results] == [[2, 3, 4]] * 4
    # Two functions with two signatures each.
    assert sum(result[1] for result in first) == 4
    assert sum(result[1] for result in again) == 0
    # What is only loaded does not import what numba compiles with.
    assert run(tmp_path, LOADS) == [0, False]
    for name in ("Pair", "Two"):
        file.write_text(MODULE.format(name=name))
        assert run(tmp_path, f"import kernels; print([kernels.add(kernels.{name}(2, 3))])") == [5]


def test_a_kernel_computes_where_nothing_can_be_cached(tmp_path):
    """A cache folder that cannot be locked prevents no compilation."""

    @kernel
    def half(x: float) -> float:
        return x / 2

    half._cache._cache_path = str(tmp_path / "missing" / "folder")  # type: ignore[attr-defined]
    assert half(3.0) == 1.5
    assert half(np.float32(3)) == 1.5


def test_a_failed_compilation_holds_no_lock(tmp_path):
    """Other processes would wait for it until this one ends."""

    @kernel
    def read_missing(x: Any) -> Any:
        return x.missing

    read_missing._cache._cache_path = str(tmp_path)
    for argument in (3.0, 3):
        with pytest.raises(TypingError):
            read_missing(argument)
    [lock] = tmp_path.glob("*.lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
