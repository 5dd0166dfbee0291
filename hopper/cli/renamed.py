"""Former names of commands: what answers who still uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_CHECKOUT: Final = "python -m benchmarks."
COMMANDS: Final = {
    "bench ab": "hopper bench",
    "bench faults": f"{_CHECKOUT}faults",
    "bench paper": f"{_CHECKOUT}paper NAME",
    "bench peers": f"{_CHECKOUT}paper baselines",
    "cache plan": "hopper inspect cache CONFIG --size SIZE",
    "cache profile": "hopper inspect cache CONFIG --profile",
    "config --explain": "hopper config explain",
    "config --schema": "hopper config schema",
    "dataset info": "hopper inspect graph",
    "launch ray": "hopper train CONFIG --on ray",
    "metatree": "hopper inspect metatree",
    "precompute": "hopper dataset precompute",
    "schedule": "hopper inspect schedule",
}
"""By former command, the present one."""


def find_renamed(words: Sequence[str]) -> str | None:
    """Return the error that answers a former name of a command; None if the words begin with no
    such name."""
    for former in (" ".join(words[:2]), " ".join(words[:1])):
        if now := COMMANDS.get(former):
            where = ""
            if now.startswith(_CHECKOUT):
                where = (
                    " in a checkout of Hopper's repository; an installed package does not have "
                    "these experiments"
                )
            return f"`hopper {former}` is now `{now}`{where}"
    return None
