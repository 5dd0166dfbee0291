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
from typing import IO, Any, TypeVar, cast, overload

import numba
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
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
        compiled: Any = numba.njit(nogil=True, **options)(function)
        # Under NUMBA_DISABLE_JIT njit returns the plain function.
        if not numba.config.DISABLE_JIT:
            compiled._cache = _SharedCache(function)
            compiled.compile = compiled._cache.release_after(compiled.compile)
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

    Other processes that miss a signature of the function wait until it has been added. Locks cannot
    deadlock, since a caller's is always taken before its callee's.
    """

    _lock_file: IO[bytes] | None = None
    """while this process holds the lock"""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of a signature; None = this process must compile it."""
        # numba imports everything that it can compile here, which takes 0.4 s. Loaded machine code
        # only needs the memory management, and the compiler imports the rest itself.
        rtsys.initialize(target_context)
        loaded = self._load(sig, target_context)
        if loaded is None and self._lock_file is None:
            # Some files cannot be locked.
            with suppress(OSError):
                self._impl.locator.ensure_cache_path()
                path = os.path.join(self._cache_path, self._impl.filename_base + ".lock")
                self._lock_file = open(path, "ab")  # noqa: SIM115
                fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            # Another process may have added it meanwhile.
            loaded = self._load(sig, target_context)
        return loaded

    def _load(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of a signature, or None; an unreadable index is emptied."""
        # Signatures name the classes of their tuples, which another version may have elsewhere.
        try:
            return self._load_overload(sig, target_context)
        except (AttributeError, ImportError):
            self._cache_file.flush()
            return None

    def release_after(self, compile_signature: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that loads, or compiles and saves, and then releases the lock."""

        def load_or_compile(signature: Any) -> Any:
            # numba takes this lock too, so no other thread is between the two.
            with global_compiler_lock:
                try:
                    return compile_signature(signature)
                finally:
                    if self._lock_file is not None:
                        self._lock_file.close()
                        self._lock_file = None

        return load_or_compile
