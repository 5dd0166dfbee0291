"""Threads of numba kernels."""

from __future__ import annotations

import sys

import numba
import pytest

from hopper.device.kernel_threads import has_thread_pool, threads_for


def test_few_items_take_one_thread() -> None:
    before, most = numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS
    numba.set_num_threads(most)
    try:
        with threads_for(10):
            assert numba.get_num_threads() == 1
        with threads_for(1_000_000):
            assert numba.get_num_threads() == most
        assert numba.get_num_threads() == most
    finally:
        numba.set_num_threads(before)


def test_a_machine_without_openmp_and_tbb_has_no_thread_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert has_thread_pool()
    for module in ("omppool", "tbbpool"):
        # Makes the import fail, as if its library were missing.
        monkeypatch.setitem(sys.modules, f"numba.np.ufunc.{module}", None)
    assert not has_thread_pool()
