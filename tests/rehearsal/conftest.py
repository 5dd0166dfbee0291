"""Training many configurations on one set of ranks, as the tests of engines do."""

from tests.engines.conftest import train_cases

__all__ = ["train_cases"]
