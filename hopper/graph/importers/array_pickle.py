"""Read pickles of arrays without calling anything else that they name.

The ogb library saves dictionaries of NumPy arrays with ``torch.save``, in a protocol that torch's
restricted reader does not know. The reader here builds arrays and their containers. It refuses a
file that names anything else.
"""

from __future__ import annotations

import pickle  # a closed reader: it calls nothing that a file names
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch

from hopper.errors import GraphError
from hopper.graph.importers.source_files import first_line

_torch_load: Final = torch.load
_RECONSTRUCT: Final = np.empty(0).__reduce__()[0]
# numpy 1 and numpy 2 pickle arrays under different names.
_KNOWN: Final[dict[tuple[str, str], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): OrderedDict,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")
        return _KNOWN[module, name]


def load_arrays(file: str | Path, *_arguments: Any, **_keywords: Any) -> Any:
    """Load tensors or NumPy arrays that ``torch.save`` wrote.

    Other arguments of ``torch.load`` are accepted and ignored.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return _torch_load(file, weights_only=True)
    except pickle.UnpicklingError:
        # The pickle holds NumPy's arrays.
        pass
    except (OSError, RuntimeError, EOFError) as error:
        raise GraphError(f"{file}: cannot be read: {first_line(error)}") from error
    try:
        with zipfile.ZipFile(file) as archive, _open_pickle(archive) as stream:
            return _ArrayUnpickler(stream).load()
    except (pickle.UnpicklingError, OSError, KeyError, zipfile.BadZipFile, ValueError) as error:
        raise GraphError(
            f"{file}: expected arrays and nothing else: {first_line(error)}"
        ) from error


@contextmanager
def load_arrays_only() -> Iterator[None]:
    """Replace ``torch.load`` by :func:`load_arrays` within a ``with`` block."""
    # A type checker refuses the assignment of another function, but not ``setattr``.
    setattr(torch, "load", load_arrays)  # noqa: B010
    try:
        yield
    finally:
        setattr(torch, "load", _torch_load)  # noqa: B010


def _open_pickle(archive: zipfile.ZipFile) -> IO[bytes]:
    [name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    return archive.open(name)
