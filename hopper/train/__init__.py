"""Training runs: ``hopper.train(config)``, ``hopper train CONFIG`` and, for one rank of a cluster,
``torchrun ... -m hopper.train CONFIG``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from hopper.train.launch import RunResult, train

__all__ = ["RunResult", "train"]


class _CallableModule(ModuleType):
    # ``hopper.train`` is a package, for ``torchrun -m hopper.train``, and a function.
    def __call__(self, *arguments: Any, **keywords: Any) -> RunResult:
        return train(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
