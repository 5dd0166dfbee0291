"""What torchrun finds of Hopper, through the entry point ``torchrun.handlers`` of pyproject.toml.

torch asks for it while it is being imported itself, so this module imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def loopback_rendezvous() -> Callable[[Any], Any]:
    """What makes a :class:`hopper.rendezvous.LoopbackRendezvous` of torchrun's parameters."""
    return _make_rendezvous


def _make_rendezvous(parameters: Any) -> Any:
    from hopper.rendezvous import make_rendezvous

    return make_rendezvous(parameters)
