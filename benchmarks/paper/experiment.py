"""The definition of an experiment: reported figures, compared sides, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.paper.cells import Grid
from hopper.bench.contender import Contender
from hopper.config import Config
from hopper.errors import RequestError
from hopper.partition import PartitionedGraph

BY_DIMENSION: Final = "by-dimension"
"""a division whose features lie by dimension, nodes at random"""
OTHER_DIVISIONS: Final = ("random", "meta", BY_DIMENSION)
FOUND: Final = "{merge}"
"""in a side's label: the number of time steps to dissolve that an adaptive run settled on"""


class Published(NamedTuple):
    """A figure that a paper reports, and where."""

    place: str
    what: str
    value: str


class Side(NamedTuple):
    """One side of a comparison: what the paper calls it, and the contender that it is here."""

    role: str
    label: str

    def contender(
        self, dissolve: int | None = None, divisions: Mapping[str, Path] | None = None
    ) -> Contender:
        """Parse the contender. The parameters are those of :meth:`text`."""
        return Contender.parse(self.text(divisions or {}, dissolve))

    def text(self, divisions: Mapping[str, Path], dissolve: int | None = None) -> str:
        """Write the contender as ``ENGINE[:KEY=VALUE]...``.

        Parameters
        ----------
        divisions: by method, where the graph so divided lies.
        dissolve: what an adaptive run settled on; to dissolve no time step is not to merge.
        """
        label = self.label.replace(FOUND, str(dissolve) if dissolve else "off")
        for method, path in divisions.items():
            label = label.replace(f"{{{method}}}", str(path))
        return label

    @property
    def division(self) -> str | None:
        """The method by which its graph is divided, if it is not the cell's: in its label, in
        braces."""
        return next((method for method in OTHER_DIVISIONS if f"{{{method}}}" in self.label), None)


Result = Mapping[str, Any]
"""the content of result.json"""


class Table(NamedTuple):
    """A table of a page: its first column is text, the others numbers.

    note: a line below it.
    """

    title: str
    headings: tuple[str, ...]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper, or a comparison of Hopper's own, as a command.

    Attributes
    ----------
    name: of the command.
    title: one line, for ``--list`` and the page.
    published: what the paper reports; empty where there is none.
    hardware, link: what the paper measured on, and over.
    grid: the cells.
    sides: what is compared in every cell, the baseline first.
    comparisons: pairs of roles (faster, baseline) whose ratio is reported.
    differs: why figures differ, as far as it is peculiar to this experiment; sentences.
    tables: make the page's tables from result.json.
    draw: makes the picture from result.json; None = no picture.
    rounds: of every comparison.
    epochs: of every timed run; the first warms up, and to the end of the last nothing is prepared
        ahead, so neither is measured.
    iterations: of an epoch, at most; 0 = all.
    words: ``--section.key=value`` of every cell's configuration, ahead of the command line's.
    runs: what a side's runs are, in words of the page, with what was asked for in braces, such as
        {seeds}; "" = timed runs, or whole epochs where no time is reported.
    timed: False where no time is reported.
    shows_epochs: whether tables or the picture show single epochs.
    peers: other systems that are trained in the same rounds, where they are there; by name.
    scores: whether accuracy is reported, after a run's last epoch.
    lets_auto_choose: whether every cell asks ``train.engine = "auto"`` too what it would take.
    shares_cpus: every host gets the same share of the machine, whatever their number.
    host_memory: what a host may use at most, unless the command line says so; "" = no bound.
    extra: what is added to a cell, from its configuration and its divided graph.
    carry_out: runs the experiment, from a job to the cells of result.json; None = a grid of A/Bs.
    count_runs: how many runs ``carry_out`` reports; None = those of a grid.
    """

    name: str
    title: str
    published: tuple[Published, ...]
    grid: Grid
    tables: tuple[Callable[[Result], Table], ...]
    sides: tuple[Side, ...] = ()
    comparisons: tuple[tuple[str, str], ...] = ()
    hardware: str = ""
    link: str = ""
    differs: tuple[str, ...] = ()
    draw: Callable[[Result, Path], None] | None = None
    rounds: int = 3
    epochs: int = 4
    iterations: int = 4
    words: tuple[str, ...] = ()
    runs: str = ""
    timed: bool = True
    shows_epochs: bool = False
    peers: tuple[str, ...] = ()
    scores: bool = False
    lets_auto_choose: bool = False
    shares_cpus: bool = False
    host_memory: str = ""
    extra: Callable[[Config, PartitionedGraph], dict[str, Any]] | None = None
    carry_out: Callable[[Any], Iterator[dict[str, Any]]] | None = None
    count_runs: Callable[[Any], int] | None = None

    def of_sides(self, roles: tuple[str, ...] | None) -> Experiment:
        """Return the same with some of its sides, in its order; None = all.

        Raises
        ------
        RequestError: it has no such side.
        """
        if roles is None:
            return self
        sides_by_role = {side.role: side for side in self.sides}
        unknown = [role for role in roles if role not in sides_by_role]
        if unknown:
            raise RequestError(
                f"--side: expected one of {'; '.join(sides_by_role)}; given {unknown[0]!r}"
            )
        left_out = sides_by_role.keys() - set(roles)
        return replace(
            self,
            sides=tuple(side for role, side in sides_by_role.items() if role in roles),
            comparisons=tuple(pair for pair in self.comparisons if not left_out & set(pair)),
        )

    @property
    def divisions(self) -> tuple[str, ...]:
        """The methods by which its sides want the graph divided, besides the cell's."""
        return tuple(dict.fromkeys(side.division for side in self.sides if side.division))

    @property
    def looks_for_merge(self) -> bool:
        """Whether a side needs an adaptive run first."""
        return any(FOUND in side.label for side in self.sides)
