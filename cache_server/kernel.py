"""Kernels: functions that numba compiles, each of them once on a machine.

numba keeps what it compiled on disk, but processes that begin together each compile the same. Where
they add different signatures of one function at once, one may even overwrite the other's machine
code and keep its name: the index is read, extended and written without a lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast, overload

import numba
from numba.core.caching import FunctionCache

# numba's parallel regions must survive concurrent calls from several threads: tbb or omp, never
# workqueue.
numba.config.THREADING_LAYER = "threadsafe"

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def kernel(function: _F, /) -> _F: ...


@overload
def kernel(function: None = None, /, **options: Any) -> Callable[[_F], _F]: ...


def kernel(function: _F | None = None, /, **options: Any) -> _F | Callable[[_F], _F]:
    """Compile a function when it is first called, without Python objects or the GIL.

    Parameters
    ----------
    options: of ``numba.njit``, such as ``parallel=True``.
    """

    def compile_later(function: _F) -> _F:
        compiled: Any = numba.njit(cache=True, nogil=True, **options)(function)
        # It is the function itself where NUMBA_DISABLE_JIT says so.
        if not numba.config.DISABLE_JIT:
            compiled._cache = _SharedCache(function)
        return cast(_F, compiled)

    return compile_later if function is None else compile_later(function)


class _SharedCache(FunctionCache):
    """numba's files, of which a process that lacks a signature takes hold until it has added it.

    Others that look for it, or for another one of the same function, wait. numba has a lock of its
    own around both calls, so that no two threads of a process are in here. Functions that call each
    other are taken hold of from caller to callee alone, so that no two processes wait for each
    other.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._held: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is compiled for a signature; None if this process is to compile it."""
        found = super().load_overload(sig, target_context)
        if found is None and self._hold():
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._let_go()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for a signature."""
        try:
            super().save_overload(sig, data)
        finally:
            self._let_go()

    def _hold(self) -> bool:
        """Wait until no other process compiles it; false where files cannot be locked."""
        if self._held is not None:
            return False
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            path = os.path.join(self._cache_path, self._impl.filename_base + ".lock")
            self._held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._held, fcntl.LOCK_EX)
            return True
        self._let_go()
        return False

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None
