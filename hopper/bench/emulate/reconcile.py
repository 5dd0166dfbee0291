"""Comparison of counted traffic with the counters of network interfaces.

Interfaces also count TCP and IP headers, acknowledgements and gRPC's framing, a few per cent in
all. A larger difference shows traffic that was sent but not counted, or counted but not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from hopper.bench.statistics import Run, engines_of, label_of, sent_bytes
from hopper.display.console_tables import print_table

TOLERANCE: Final = 0.10
"""The allowed relative difference between the two."""


class Reconciled(NamedTuple):
    """One contender's bytes over all its runs and hosts: those that ranks counted when they sent
    them, and those that the interfaces counted."""

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


def reconcile(runs: Sequence[Run]) -> list[Reconciled]:
    """Add up the ``runs`` of results.json by contender, those without interface counters apart."""
    result = []
    read = [run for run in runs if run["nic_bytes"] is not None]
    for label in engines_of(read):
        of_label = [run for run in read if label_of(run) == label]
        counted = sum(sent_bytes(epoch) for run in of_label for epoch in run["epochs"])
        sent = sum(sum(run["nic_bytes"]) for run in of_label)
        result.append(Reconciled(label, int(counted), sent))
    return result


def print_reconciliation(console: Console, runs: Sequence[Run]) -> None:
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
        megabytes = (f"{count / 1e6:,.2f}" for count in (traffic.counted, traffic.sent))
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
