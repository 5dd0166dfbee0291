"""Kernels: functions that numba compiles, each once per machine.

numba caches compiled functions on disk, but without a lock: it reads, extends and writes its index.
Processes that start together would each compile the same function. If they added different
signatures of one function, one could even overwrite the other's machine code under the same name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast, overload

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numpy.typing import NDArray

# numba's parallel regions must survive concurrent calls from several threads: tbb or omp, never
# workqueue.
numba.config.THREADING_LAYER = "threadsafe"

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def kernel(function: _F, /) -> _F: ...


@overload
def kernel(function: None = None, /, **options: Any) -> Callable[[_F], _F]: ...


def kernel(function: _F | None = None, /, **options: Any) -> _F | Callable[[_F], _F]:
    """Compile a function at its first call; it then runs without Python objects and the GIL.
    Options are those of ``numba.njit``, such as ``parallel=True``."""

    def compile_later(function: _F) -> _F:
        """Make a function that is compiled at its first call."""
        compiled: Any = numba.njit(nogil=True, **options)(function)
        # Under NUMBA_DISABLE_JIT njit returns the plain function.
        if not numba.config.DISABLE_JIT:
            compiled._cache = _SharedCache(function)
            compiled._compiler.compile = compiled._cache.release_after_failure(
                compiled._compiler.compile
            )
        return cast(_F, compiled)

    return compile_later if function is None else compile_later(function)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of an array, or the array itself where it is read-only already.

    numba compiles a kernel for every combination of writable and read-only arrays. A kernel whose
    inputs may be mapped files as well as new arrays gets views of all, and is compiled once.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


class _SharedCache(FunctionCache):
    """numba's cache of one function, locked by the process that compiles a signature.

    Other processes that miss a signature of the function wait until it has been added. Threads need
    no lock here, since numba calls both methods under a lock of its own. Locks cannot deadlock,
    since a caller's is always taken before its callee's.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._lock_file: int | None = None
        """file descriptor of the lock while this process holds it"""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of a signature; None = this process must compile it."""
        # numba imports everything that it can compile here, which takes 0.4 s. Loaded machine code
        # only needs the memory management, and the compiler imports the rest itself.
        rtsys.initialize(target_context)
        loaded = self._load(sig, target_context)
        if loaded is None and self._acquire_lock():
            # Another process may have added it meanwhile.
            loaded = self._load(sig, target_context)
            if loaded is not None:
                self._release_lock()
        return loaded

    def _load(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of a signature, or None; an unreadable index is emptied."""
        # Signatures name the classes of their tuples, which another version may have elsewhere.
        try:
            return self._load_overload(sig, target_context)
        except (AttributeError, ImportError):
            self._cache_file.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the machine code of a signature, and release the lock."""
        try:
            super().save_overload(sig, data)
        finally:
            self._release_lock()

    def release_after_failure(self, compile_signature: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that compiles, and releases the lock if that fails, since numba saves
        nothing then, and others would wait as long as this process runs."""

        def compile_or_release(args: Any, return_type: Any) -> Any:
            try:
                return compile_signature(args, return_type)
            except BaseException:
                self._release_lock()
                raise

        return compile_or_release

    def _acquire_lock(self) -> bool:
        """Wait for the lock; return whether it was acquired now. Some files cannot be locked."""
        if self._lock_file is not None:
            return False
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            path = os.path.join(self._cache_path, self._impl.filename_base + ".lock")
            self._lock_file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            return True
        self._release_lock()
        return False

    def _release_lock(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
