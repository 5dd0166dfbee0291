"""Counted traffic against what the network interfaces say they sent.

The counters include what no rank counts: TCP and IP headers, acknowledgements, gRPC's framing. So a
few per cent more is expected; traffic that went uncounted, or was counted and never sent, shows as
more than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hopper.bench.statistics import label_of, sent_bytes

TOLERANCE: Final = 0.10
"""what may lie between the two (design.md, invariant 3)"""

_MEGABYTE = 1e6


@dataclass(frozen=True)
class Reconciled:
    """One contender's traffic over all its timed runs, bytes, summed over hosts.

    Attributes
    ----------
    counted: of all causes, as ranks count them when they send.
    sent: by the interfaces' counters.
    """

    label: str
    counted: int
    sent: int

    @property
    def ratio(self) -> float | None:
        """Sent over counted; None where nothing was counted."""
        return self.sent / self.counted if self.counted else None

    @property
    def agrees(self) -> bool:
        """Whether the two are within the tolerance of each other."""
        return self.ratio is not None and abs(self.ratio - 1) <= TOLERANCE


def reconcile(runs: Sequence[Mapping[str, Any]]) -> list[Reconciled]:
    """Add up the ``runs`` of results.json by contender, in order of appearance; those whose
    interfaces were not read are left out."""
    counted: dict[str, int] = {}
    sent: dict[str, int] = {}
    for run in runs:
        if run["nic_bytes"] is None:
            continue
        label = label_of(run)
        own = int(sum(map(sent_bytes, run["epochs"])))
        counted[label] = counted.get(label, 0) + own
        sent[label] = sent.get(label, 0) + sum(run["nic_bytes"])
    return [Reconciled(label, counted[label], sent[label]) for label in counted]


def print_reconciliation(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """Print both per contender, and say where they disagree; nothing where none was read."""
    found = reconcile(runs)
    if not found:
        return
    table = Table(title="Counted traffic and the hosts' interfaces, all timed epochs")
    for name in ("", "counted, MB", "interfaces sent, MB", "sent / counted"):
        table.add_column(name, justify="right" if name else "left")
    for each in found:
        ratio = "nothing counted" if each.ratio is None else f"{each.ratio:.3f}"
        megabytes = (f"{value / _MEGABYTE:,.2f}" for value in (each.counted, each.sent))
        table.add_row(each.label, *megabytes, ratio)
    console.print(table)
    for each in found:
        if not each.agrees:
            console.print(
                f"WARNING: {each.label}: what the interfaces sent and what was counted differ by "
                f"more than {TOLERANCE:.0%}",
                soft_wrap=True,
                highlight=False,
            )
