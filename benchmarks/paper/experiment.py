"""Experiments as data: ``benchmarks/experiments/*.toml``, read and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hopper.errors import RequestError

FOLDER: Final = Path(__file__).parents[1] / "experiments"
BY_DIMENSION: Final = "by-dimension"
DIVISIONS: Final = ("random", "meta", BY_DIMENSION)
FOUND: Final = "{merge}"

MeasureName = Literal[
    "ab", "gpu", "locality", "seeds", "penalties", "job-times",
    "layer-epochs", "layer-operators", "layer-rates",
]  # fmt: skip


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Grid(_Checked):
    """The cells of an experiment: the product of its axes.

    Attributes
    ----------
    graphs: presets, or paths of graph directories.
    models: () = no model is trained.
    scales: by preset, where it is not that of :data:`benchmarks.paper.cells.SCALES`.
    layers, fanouts: by default the model's own (3 layers and fanout 10; 7 or 10 layers and
        fanout 2). A fanout is that of every hop, or one per hop, which gives the layers too.
    batch_sizes: roots a rank and iteration at scale 1, scaled with the graph.
    shared_batch: roots of all ranks together instead, whatever the scale.
    feature_dims: instead of the preset's own.
    links: rates of the emulated hosts' links.
    names_link: whether a single rate shows in cells' names, as another one than the experiment's.
    cache_sizes: ``cache.size`` of the sides that have a cache.
    pairs: a graph and a model each, which are run where the command line names neither; () = all.
    """

    graphs: tuple[str, ...]
    models: tuple[str, ...] = ()
    scales: dict[str, float] = {}
    hidden: tuple[int, ...] = (16,)
    layers: int | None = None
    fanouts: tuple[int | tuple[int, ...], ...] = ()
    batch_sizes: tuple[int, ...] = (1024,)
    shared_batch: int | None = None
    feature_dims: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    links: tuple[str, ...] = ("1gbit",)
    names_link: bool = False
    cache_sizes: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


class Experiment(_Checked):
    """One table or figure of a paper, or a comparison of Hopper's own.

    Attributes
    ----------
    paper, where: whose it is, and its place there.
    published: what the paper reports: place, what, value.
    hardware, link: what the paper measured on, and over.
    differs: why figures differ; sentences.
    sides: by name, what is compared in every cell: ``ENGINE[:KEY=VALUE]...`` as in
        ``hopper bench``, or a peer of ``benchmarks.peers``. ``{random}``, ``{meta}`` and
        ``{by-dimension}`` stand for a graph so divided, ``{merge}`` for the number of time steps
        that an adaptive run settles on.
    comparisons: by baseline, the sides whose ratio to it is reported.
    measure: what measures a cell; "ab" trains the sides in turns.
    report: patterns of the values that go into summary.csv.
    rounds: of every comparison; seeds where accuracy is measured.
    epochs: of every run; the first warms up and the last prepares nothing ahead, so neither is
        timed.
    iterations: of an epoch, at most; 0 = all.
    words: ``--section.key=value`` of every configuration; ``{epochs}`` stands for the epochs.
    auto: whether every cell asks ``train.engine = "auto"`` too what it would take.
    host_cpus, host_memory: of an emulated host; "shared" = the same share of the machine for all.
    """

    name: str
    title: str
    grid: Grid
    paper: str = ""
    where: str = ""
    published: tuple[tuple[str, str, str], ...] = ()
    hardware: str = ""
    link: str = ""
    differs: tuple[str, ...] = ()
    sides: dict[str, str] = {}
    comparisons: dict[str, tuple[str, ...]] = {}
    measure: MeasureName = "ab"
    report: tuple[str, ...] = ("epoch seconds", "sent bytes")
    rounds: int = Field(5, ge=1)
    epochs: int = Field(4, ge=1)
    iterations: int = Field(4, ge=0)
    words: tuple[str, ...] = ()
    auto: bool = False
    host_cpus: float | Literal["shared"] | None = None
    host_memory: str | None = None

    @model_validator(mode="after")
    def _check_comparisons(self) -> Self:
        for baseline, sides in self.comparisons.items():
            for side in (baseline, *sides):
                if self.sides and side not in self.sides:
                    raise ValueError(f"comparisons: expected one of {_names(self.sides)}; {side!r}")
        return self

    @property
    def divisions(self) -> tuple[str, ...]:
        """The methods by which its sides want the graph divided, besides the cell's."""
        return tuple(m for m in DIVISIONS if any(f"{{{m}}}" in s for s in self.sides.values()))

    def of_sides(self, names: tuple[str, ...]) -> Experiment:
        """Return the same with some of its sides.

        Raises
        ------
        RequestError: it has no such side.
        """
        unknown = [name for name in names if name not in self.sides]
        if unknown:
            raise RequestError(
                f"--sides: {self.name}: expected some of {_names(self.sides)}; given {unknown[0]!r}"
            )
        comparisons = {
            baseline: chosen
            for baseline, sides in self.comparisons.items()
            if baseline in names and (chosen := tuple(side for side in sides if side in names))
        }
        sides = {name: label for name, label in self.sides.items() if name in names}
        return self.model_copy(update={"sides": sides, "comparisons": comparisons})


@cache
def load_experiments(folder: Path = FOLDER) -> Mapping[str, Experiment]:
    """Read all files of a folder; returns the experiments by name, in the order of the files.

    Raises
    ------
    RequestError: names the file, the experiment, the key, and what is wrong with it.
    """
    experiments: dict[str, Experiment] = {}
    for file in sorted(folder.glob("*.toml")):
        for experiment in _read_file(file):
            if experiment.name in experiments:
                raise RequestError(f"{file}: {experiment.name}: another file has this name too")
            experiments[experiment.name] = experiment
    return experiments


def _read_file(file: Path) -> Iterator[Experiment]:
    try:
        tables: dict[str, dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{file}: {error}") from error
    defaults, named_sides = tables.pop("defaults", {}), tables.pop("sides", {})
    for name, own in tables.items():
        if own.get("like", name) not in tables:
            raise RequestError(f"{file}: {name}: like: no experiment {own['like']!r} in this file")
        own = _merge(tables.get(own.get("like", ""), {}), own)
        table = _merge(defaults, own)
        table["differs"] = [*defaults.get("differs", ()), *own.get("differs", ())]
        sides = table.get("sides", {})
        if isinstance(sides, list):
            unknown = [side for side in sides if side not in named_sides]
            if unknown:
                raise RequestError(
                    f"{file}: {name}: sides: expected some of {_names(named_sides)} or a table; "
                    f"given {unknown[0]!r}"
                )
            table["sides"] = {side: named_sides[side] for side in sides}
        try:
            yield Experiment(name=name, **table)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            text = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
            raise RequestError(f"{file}: {name}: {key + ': ' if key else ''}{text}") from error


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table over what it is based on; their grids are merged too."""
    grid = {**base.get("grid", {}), **own.get("grid", {})}
    if "scales" in grid:
        grid["scales"] = {**base.get("grid", {}).get("scales", {}), **grid["scales"]}
    merged = {**base, **own, "grid": grid}
    merged.pop("like", None)
    return merged


def _names(names: Mapping[str, Any]) -> str:
    return "; ".join(names)
