"""Hopper: train graph neural networks whose features do not fit one machine.

The public API is what stands in ``__all__``; everything is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "GraphDirectory",
    "PartitionedGraph",
    "divide_graph",
    "load_config",
    "make_config",
    "train",
]

__version__ = "0.1.0"

_HOMES = {
    "GraphDirectory": "hopper.graph",
    "PartitionedGraph": "hopper.partition",
    "divide_graph": "hopper.hetero.divide",
    "load_config": "hopper.config",
    "make_config": "hopper.config",
}


def __getattr__(name: str) -> Any:
    if name == "train":
        return importlib.import_module("hopper.train")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hopper' has no attribute {name!r}")
