"""Open files of other programs safely, and refuse unsuitable ones with a clear error."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import NPY_ERRORS
from hopper.errors import GraphError

_ARCHIVE: Final = b"PK"


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
    try:
        file = folder / name
        leads_out = not file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise GraphError(
            f"{where}: expected the name of a file, given {name!r:.200}: {error}"
        ) from None
    if leads_out:
        raise GraphError(f"{where}: expected a file inside {folder}, given {name!r:.200}")
    return file


def load_npy(file: Path, what: str, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    """Read or map a .npy file."""
    require_file(file, what)
    try:
        with file.open("rb") as stream:
            is_archive = stream.read(2) == _ARCHIVE
        if is_archive:
            raise GraphError(
                f"{file}: {what}: expected one .npy array, given an archive of several"
            )
        array: NDArray[Any] = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except (OSError, *NPY_ERRORS) as error:
        raise GraphError(
            f"{file}: {what}: not a readable .npy file: {first_line(error)}"
        ) from error
    return array


def load_csr(file: Path, what: str) -> Any:
    """Read a SciPy CSR matrix from a .npz file, and check its indices.

    SciPy's own loader does not, and would read beyond the end of its arrays.
    """
    from scipy import sparse

    require_file(file, what)
    try:
        # Given a name, numpy would leave a damaged archive open.
        with file.open("rb") as stream:
            matrix = sparse.load_npz(stream)
        if matrix.format != "csr":
            raise ValueError(f"expected format csr, given {matrix.format}")
        # Loading does not look at the indices, which lead beyond the arrays if they are wrong.
        matrix.check_format(full_check=True)
    except (OSError, KeyError, AttributeError, *NPY_ERRORS) as error:
        raise GraphError(
            f"{file}: {what}: not a SciPy sparse matrix: {first_line(error)}"
        ) from error
    return matrix


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; libraries in C++ append their stack."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
