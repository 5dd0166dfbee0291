"""Loads kernels that numba keeps on disk, for copies of this process. This file has no tests."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

PACKAGES = ("cache_server", "hopper")


class KeptKernels:
    """The kernels of all modules of this project that this process has imported.

    Loading one takes some hundredths of a second, and a rank calls dozens of them.
    """

    def __init__(self) -> None:
        modules = [
            module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES
        ]
        self._kernels: list[Any] = list(
            {
                id(value): value
                for module in modules
                for value in vars(module).values()
                if isinstance(value, Dispatcher)
            }.values()
        )
        self._changed: dict[Path, int] = {}
        """by index file of a kernel, the time of its last change"""

    def load(self) -> bool:
        """Load what other processes have compiled since the last call; returns whether any was."""
        known = dict(self._changed)
        for kernel in self._kernels:
            files = kernel._cache._cache_file
            index = Path(files._index_path)
            if not index.exists():
                continue
            changed_at = index.stat().st_mtime_ns
            if self._changed.get(index) == changed_at:
                continue
            codegen, stored = kernel.targetctx.codegen(), files._load_index()
            # numba writes the index first. Without its file a kernel would be compiled here, and
            # everybody who asks for a copy would wait.
            if not all(Path(files._data_path(name)).exists() for name in stored.values()):
                continue
            self._changed[index] = changed_at
            for signature, *stored_key in stored:
                index_key = list(kernel._cache._index_key(signature, codegen)[1:])
                if stored_key == index_key and signature not in kernel.overloads:
                    kernel.compile(signature)
        if self._changed == known:
            return False
        # Kernels live as long as the process, so the garbage collector need not look at them.
        gc.freeze()
        return True
