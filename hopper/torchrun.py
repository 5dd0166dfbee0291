"""The target of the entry point ``torchrun.handlers`` in pyproject.toml.

torch calls it while torch itself is being imported, so this module must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def loopback_rendezvous() -> Callable[[Any], Any]:
    """Return the function that makes a :class:`hopper.rendezvous.LoopbackRendezvous` for
    torchrun."""
    return _make_rendezvous


def _make_rendezvous(parameters: Any) -> Any:
    from hopper.rendezvous import make_rendezvous

    return make_rendezvous(parameters)
