"""Comparison of counted traffic with the counters of network interfaces.

Interfaces also count TCP and IP headers, acknowledgements and gRPC's framing, a few per cent in
all. A larger difference shows traffic that was sent but not counted, or counted but not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hopper.bench.statistics import label_of, sent_bytes
from hopper.console_tables import print_table

TOLERANCE: Final = 0.10
"""The allowed relative difference between the two."""

_MEGABYTE = 1e6


@dataclass(frozen=True)
class Reconciled:
    """One contender's bytes over all its timed runs, summed over hosts.

    Attributes
    ----------
    label: the contender's label.
    counted: bytes that ranks counted when they sent them, for all causes.
    sent: bytes that the interfaces counted.
    """

    label: str
    counted: int
    sent: int

    @property
    def ratio(self) -> float | None:
        """Sent bytes divided by counted bytes; None if nothing was counted."""
        return self.sent / self.counted if self.counted else None

    @property
    def agrees(self) -> bool:
        """Return whether the two differ by no more than the tolerance."""
        return self.ratio is not None and abs(self.ratio - 1) <= TOLERANCE


def reconcile(runs: Sequence[Mapping[str, Any]]) -> list[Reconciled]:
    """Add up the ``runs`` of results.json by contender, in order of appearance.

    Runs without interface counters are left out.
    """
    counted: dict[str, int] = {}
    sent: dict[str, int] = {}
    for run in runs:
        if run["nic_bytes"] is None:
            continue
        label = label_of(run)
        run_bytes = int(sum(map(sent_bytes, run["epochs"])))
        counted[label] = counted.get(label, 0) + run_bytes
        sent[label] = sent.get(label, 0) + sum(run["nic_bytes"])
    return [Reconciled(label, counted[label], sent[label]) for label in counted]


def print_reconciliation(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """Print both numbers of each contender, with a warning where they disagree.

    Nothing is printed if no interface was read.
    """
    reconciled = reconcile(runs)
    if not reconciled:
        return
    table = Table(title="Counted traffic and the hosts' interfaces, all timed epochs")
    for name in ("", "counted, MB", "interfaces sent, MB", "sent / counted"):
        table.add_column(name, justify="right" if name else "left")
    for traffic in reconciled:
        ratio = "nothing counted" if traffic.ratio is None else f"{traffic.ratio:.3f}"
        megabytes = (f"{value / _MEGABYTE:,.2f}" for value in (traffic.counted, traffic.sent))
        table.add_row(traffic.label, *megabytes, ratio)
    print_table(console, table)
    for traffic in reconciled:
        if not traffic.agrees:
            console.print(
                f"WARNING: {traffic.label}: what the interfaces sent and what was counted differ "
                f"by more than {TOLERANCE:.0%}",
                soft_wrap=True,
                highlight=False,
            )
