"""Training runs: ``hopper.train(config)``, ``hopper train CONFIG`` and, for one rank of a cluster,
``torchrun ... -m hopper.train CONFIG``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopper.train.launch import RunResult, train

__all__ = ["RunResult", "train"]


def __getattr__(name: str) -> Any:
    # Loaded when it is used: a rank does something before it imports torch.
    if name in __all__:
        from hopper.train import launch

        return getattr(launch, name)
    raise AttributeError(f"module 'hopper.train' has no attribute {name!r}")


class _CallableModule(ModuleType):
    # ``hopper.train`` is a package, for ``torchrun -m hopper.train``, and a function.
    def __call__(self, *arguments: Any, **keywords: Any) -> RunResult:
        from hopper.train.launch import train

        return train(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
