"""Kernels that numba keeps on disk, loaded by a process whose copies will call them; no test."""

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
        """by index of a kernel, when it had changed last"""

    def load(self) -> bool:
        """Load what other processes have compiled since this was last called; whether there was."""
        before = dict(self._changed)
        for kernel in self._kernels:
            files = kernel._cache._cache_file
            index = Path(files._index_path)
            if not index.exists():
                continue
            changed = index.stat().st_mtime_ns
            if self._changed.get(index) == changed:
                continue
            self._changed[index] = changed
            codegen = kernel.targetctx.codegen()
            for signature, *made_for in files._load_index():
                own = list(kernel._cache._index_key(signature, codegen)[1:])
                if made_for == own and signature not in kernel.overloads:
                    kernel.compile(signature)
        if self._changed == before:
            return False
        # What lives as long as the process is not looked through for garbage.
        gc.freeze()
        return True
