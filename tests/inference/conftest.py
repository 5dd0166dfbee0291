"""Graphs of the engines' tests, divided once."""

from tests.engines.conftest import divided, graph_of

__all__ = ["divided", "graph_of"]
