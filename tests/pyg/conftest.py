"""Ranks whose scripts use PyG."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def run_ranks(rank_pool, run_ranks) -> Callable[..., list[Any]]:
    """Run a script on ranks that need not import PyG themselves, which would take three seconds
    each."""
    rank_pool.import_ahead("hopper.pyg")
    return run_ranks
