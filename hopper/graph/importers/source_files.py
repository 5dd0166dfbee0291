"""Open files of other programs safely, and refuse unsuitable ones with a clear error."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import NPY_ERRORS
from hopper.errors import GraphError
from hopper.files.addresses import without_password

_ARCHIVE: Final = b"PK"
_LONGEST: Final = 200
_ADVICE: Final = re.compile(r"\. +(?=If you |This is an internal )")


@contextmanager
def explain_errors(text: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise errors of a library, of any kind by default, as a line of ours before its own."""
    caught = errors or (Exception,)
    try:
        yield
    except GraphError:
        raise
    except caught as error:
        raise GraphError(f"{text}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; libraries in C++ append their stack, and others
    what to do, which is for their own users."""
    line = without_password(str(error).strip() or type(error).__name__).splitlines()[0]
    return _ADVICE.split(line)[0][:_LONGEST]


def require_file(file: Path, what: str) -> Path:
    """Check that a file is there and regular: reading a pipe or a device might never end."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        raise GraphError(f"{file}: {what}: missing file") from None
    except (OSError, ValueError) as error:
        raise GraphError(f"{file}: {what}: cannot be read: {error}") from None
    if not stat.S_ISREG(mode):
        raise GraphError(f"{file}: {what}: expected a file, given something else")
    return file


def find_inside(folder: Path, name: str, where: str) -> Path:
    """Find a file that a source names, which must lie in the source's folder."""
    with explain_errors(f"{where}: expected the name of a file, given {name!r:.200}"):
        if (folder / name).resolve().is_relative_to(folder.resolve()):
            return folder / name
    raise GraphError(f"{where}: expected a file inside {folder}, given {name!r:.200}")


def load_npy(file: Path, what: str, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    """Read or map a .npy file."""
    require_file(file, what)
    with explain_errors(f"{file}: {what}: not a readable .npy file", OSError, *NPY_ERRORS):
        with file.open("rb") as stream:
            if stream.read(2) == _ARCHIVE:
                raise GraphError(
                    f"{file}: {what}: expected one .npy array, given an archive of several"
                )
        array: NDArray[Any] = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    return array


def load_table(file: Path, kind: str, what: str, delimiter: str = ",") -> NDArray[Any]:
    """Read the columns of a CSV file without header or of a Parquet file, [rows, columns], or map
    an array of NumPy; ``kind`` is "csv", "parquet" or "numpy"."""
    from pyarrow import csv, parquet

    if kind == "numpy":
        return load_npy(file, what, "r")
    if kind not in ("csv", "parquet"):
        raise GraphError(f"{what}: expected format csv, numpy or parquet, given {kind!r}")
    if not require_file(file, what).stat().st_size:
        return np.empty((0, 2), np.int64)
    with explain_errors(f"{file}: {what}: cannot be read as {kind}"):
        if kind == "parquet":
            table = parquet.read_table(file)
        else:
            options = csv.ReadOptions(autogenerate_column_names=True)
            table = csv.read_csv(file, options, csv.ParseOptions(delimiter=delimiter))
        return np.column_stack([column.to_numpy() for column in table.columns])


def load_csr(file: Path, what: str) -> Any:
    """Read a SciPy CSR matrix from a .npz file, and check its indices.

    SciPy's own loader does not, and would read beyond the end of its arrays.
    """
    from scipy import sparse

    require_file(file, what)
    errors = (OSError, KeyError, AttributeError, *NPY_ERRORS)
    # Given a name, numpy would leave a damaged archive open.
    with explain_errors(f"{file}: {what}: not a SciPy sparse matrix", *errors):
        with file.open("rb") as stream:
            matrix = sparse.load_npz(stream)
        if matrix.format != "csr":
            raise ValueError(f"expected format csr, given {matrix.format}")
        matrix.check_format(full_check=True)
    return matrix
