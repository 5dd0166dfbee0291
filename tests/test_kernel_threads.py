"""Threads of numba kernels, and settings of OpenMP for ranks."""

import sys

import numba
import pytest

from hopper.device.kernel_threads import has_thread_pool, threads_for
from hopper.process.thread_settings import thread_settings
from tests.conftest import numba_threads


def test_few_items_take_one_thread():
    most = numba.config.NUMBA_NUM_THREADS
    with numba_threads():
        with threads_for(10):
            assert numba.get_num_threads() == 1
        with threads_for(1_000_000):
            assert numba.get_num_threads() == most
        assert numba.get_num_threads() == most


def test_a_machine_without_openmp_and_tbb_has_no_thread_pool(monkeypatch):
    assert has_thread_pool()
    for module in ("omppool", "tbbpool"):
        # Makes the import fail, as if its library were missing.
        monkeypatch.setitem(sys.modules, f"numba.np.ufunc.{module}", None)
    assert not has_thread_pool()


@pytest.mark.parametrize(
    ("ranks", "threads", "given", "expected"),
    [
        (2, 0, {}, {"OMP_NUM_THREADS": "4"}),
        (3, 0, {}, {"OMP_NUM_THREADS": "2"}),
        (2, 3, {}, {"OMP_NUM_THREADS": "3"}),
        (8, 1, {}, {"OMP_NUM_THREADS": "1"}),
        # Waiting threads sleep only if there are too few cores.
        (2, 5, {}, {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "PASSIVE"}),
        (9, 0, {}, {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
        # A user's variables are kept.
        (2, 0, {"OMP_NUM_THREADS": "6"}, {"OMP_NUM_THREADS": "6"}),
        (
            2,
            5,
            {"OMP_WAIT_POLICY": "ACTIVE"},
            {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "ACTIVE"},
        ),
    ],
)
def test_settings_of_ranks_follow_from_the_number_of_cores(
    ranks, threads, given, expected, monkeypatch
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert thread_settings(ranks, threads) == expected
