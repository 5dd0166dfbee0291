"""Training many configurations on one set of ranks, as the tests of engines do."""

from tests.engines.conftest import divided, train, train_cases

__all__ = ["divided", "train", "train_cases"]
