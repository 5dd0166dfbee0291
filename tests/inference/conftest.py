"""Graphs of the engines' tests, divided once."""

from tests.engines.conftest import divided

__all__ = ["divided"]
