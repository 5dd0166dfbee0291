"""Runs that differ in where rows and edges lie, or in when they are read, are equal bit for bit.

Each row of the table is a run, and changes to it that may alter traffic alone.
"""

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import read_tensors

from .features import CACHE, VARIANTS, WORLDS, Case, Sections, World, case_of, merged

pytestmark = pytest.mark.filterwarnings("ignore:split ")


def cached(policy: str, **more: str) -> dict[str, Any]:
    return {"cache": CACHE | {"policy": policy} | more}


MAPPED: dict[str, Any] = {"learnable": {"storage": "mmap"}}
# What is different, of a run or of its first epoch and of the second, which is a run of its own.
CHANGES: dict[str, tuple[Sections, ...]] = {
    "again": ({},),
    "partitioned": ({},),
    "lru": (cached("lru"),),
    "benefit": (cached("benefit"),),
    "penalty": (cached("hotness+penalty"),),
    "lru on the device": (cached("lru", memory="device"),),
    "benefit on the device": (cached("benefit", memory="device"),),
    "through host memory": ({"cluster": {"share_gpus": True}},),
    "resumed": ({}, {}),
    "mapped": (MAPPED, MAPPED),
    "mapped and cached": (MAPPED | cached("lru"), MAPPED | cached("hotness")),
    "in host memory": ({"learnable": {"storage": "host"}} | cached("hotness+penalty"),),
    "mapped, on the device": (MAPPED | cached("benefit", memory="device"),),
}
# How a graph is divided, where it is not replicated.
LAYOUTS = ("partitioned",)
MAPPINGS = ("mapped", "mapped and cached", "in host memory")


@dataclass(frozen=True)
class Base:
    """A run, and what may be different about it; see :class:`.features.Case`."""

    feature: str
    engine: str
    changes: tuple[str, ...]
    model: str = ""
    variant: str = ""
    world: World = WORLDS[0]
    sections: Sections = field(default_factory=dict)

    def case(self, topology: str) -> Case:
        """The case with a layout."""
        world = self.world._replace(topology=topology)
        case = case_of(self.feature, self.engine, world, 0, self.model)
        variant = self.variant or case.variant
        assert variant in VARIANTS[self.engine]
        return replace(case, variant=variant, world=world)


RECENT = {"sampler": {"kind_options": {"pick": "recent"}}}
SINGLE = {"train": {"dtype": "float32"}}
PASSES, BOTH = "zero_hop in passes", World(2, 2)
HOST = "through host memory"
EVERY_CACHE = ("lru", "benefit", "lru on the device", "benefit on the device")
BASES = [
    Base("node", PASSES, LAYOUTS, "gcn"),
    Base("node", "naive", LAYOUTS, "gcn"),
    Base("labor", "cooperative", ("partitioned", "again"), "gat", sections=SINGLE),
    Base("types", "model_centric", LAYOUTS, "hgt", world=BOTH),
    Base("types", "model_centric", LAYOUTS, "rgcn", "locality"),
    Base("in time", "hop", LAYOUTS, "gat", sections=RECENT),
    Base("types, in time", PASSES, LAYOUTS, "rgat"),
    # Lists of other servers, and scores, leave out links.
    Base("links of several types in time", "model_centric", LAYOUTS, world=BOTH),
    Base("labels of several types in time", "hop", LAYOUTS, sections=RECENT),
    Base("links in time", "model_centric", LAYOUTS, "gat", "model_centric, cached"),
    Base("links", "cooperative", ("partitioned",), "sage", sections={"sampler": {"kind": "full"}}),
    Base("node", "model_centric", (*EVERY_CACHE, HOST), "gat"),
    Base(
        "node", "hop", ("lru", "penalty", "again", "through host memory"), "sage", sections=SINGLE
    ),
    Base("node", PASSES, ("penalty", "benefit", "benefit on the device"), "gat"),
    Base("features of edges", "model_centric", ("lru", "penalty"), "sage"),
    Base("node", "model_centric", ("lru on the device",), "gat", "locality"),
    Base("node", "cooperative", ("lru on the device",), "gat"),
    Base("types, learned rows", PASSES, ("resumed", *MAPPINGS), "rgcn"),
    Base("types, learned rows", "raf", ("resumed", HOST), "rgat"),
    Base("tables", "raf", ("resumed", "mapped and cached", "mapped, on the device"), "hgt"),
    Base("tables", "cooperative", ("mapped and cached", HOST), "hgt"),
]


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base.feature}, {base.engine}")
def test_changes_of_traffic_change_nothing_else(base, train, tmp_path):
    asked: list[tuple[Case, Sections]] = []
    names: list[str] = []

    def add(name: str, topology: str, *sections: Sections) -> None:
        train = {"epochs": 2, "evaluate_every": 1, "checkpoint_every": 2, "record_gradients": []}
        shared = {"train": train | {"run_dir": str(tmp_path / name)}}
        asked.append((base.case(topology), merged(shared, base.sections, *sections)))
        names.append(name)

    add("plain", "replicated")
    for name in base.changes:
        topology, (first, *second) = name if name in LAYOUTS else "replicated", CHANGES[name]
        add(name, topology, first, {"train": {"epochs": 1}} if second else {})
        for sections in second:
            add(name, topology, sections, {"train": {"resume": True}})
    # Of two runs in one folder the second one counts.
    results = dict(zip(names, [run.result for run in train(asked)], strict=True))
    plain, looked_up = results["plain"], set()
    for name in base.changes:
        result, on_device = results[name], "device" in name
        # On a device the same rows are multiplied in other blocks.
        expected = pytest.approx(plain["losses"], rel=1e-9) if on_device else plain["losses"]
        assert result["losses"] == expected, name
        assert result["val"] == plain["val"], name
        if name in LAYOUTS:
            check_layout(base, name, results)
        elif name in ("again", HOST):
            assert result["bytes"] == plain["bytes"], name
        elif "learn" in base.feature or "tables" in base.feature:
            check_tables(base, name, tmp_path, result)
        elif on_device:
            check_device_cache(base, name, result, plain)
        else:
            looked_up.add(check_cache(base, result, plain, tmp_path / name))
    assert len(looked_up) <= 1, "policies look for other rows"


def check_layout(base: Base, name: str, results: dict[str, dict[str, Any]]) -> None:
    """Assert that neighbours are asked for where they are elsewhere, and nothing more."""
    result, plain = results[name], results["plain"]
    assert result["rows"] == plain["rows"]
    assert result["bytes"] | {"topology": 0} == plain["bytes"] | {"topology": 0}
    asked = result["bytes"]["topology"] - plain["bytes"]["topology"]
    assert (asked == 0) == (base.engine == "cooperative")


def check_cache(base: Base, result: dict[str, Any], plain: dict[str, Any], run_dir: Path) -> int:
    """Assert that rows of other servers are looked for; return how many."""
    assert plain["lookups"] == {}
    hits, misses = map(sum, zip(*result["lookups"].values(), strict=True))
    assert hits > 0
    assert misses > 0
    rows, plain_rows = result["rows"], plain["rows"]
    assert (rows["local"], rows["remote"]) == (plain_rows["local"], plain_rows["remote"])
    assert rows["remote_unique"] + rows["cached"] == plain_rows["remote_unique"]
    assert result["bytes"]["feature"] < plain["bytes"]["feature"]
    assert len(result["lookups"]) == (2 if base.feature == "features of edges" else 1)
    assert rows["cached"] == hits
    logged = np.zeros(2, int)
    for file in (run_dir / "spans").glob("rank-*.jsonl"):
        events = list(map(json.loads, file.read_text().splitlines()))
        last = [line for line in events if line.get("event") == "lookups"][-1]
        logged += np.sum([*last["hits_and_misses"].values()], 0)
    assert logged.tolist() == [hits, misses]
    return int(hits + misses)


def check_device_cache(
    base: Base, name: str, result: dict[str, Any], plain: dict[str, Any]
) -> None:
    """Assert that every row is looked up, those of a rank's own server too, and some are found.

    Rows of other servers cost many times as much, and ``benefit`` holds them first.
    """
    ((hits, misses),) = result["lookups"].values()
    rows, plain_rows = result["rows"], plain["rows"]
    assert hits > 0
    assert misses == rows["local"] + rows["remote"]
    assert hits + misses == plain_rows["local"] + plain_rows["remote"]
    if "lru" in name or base.engine == "cooperative":
        assert rows["local"] < plain_rows["local"]
    else:
        assert result["bytes"]["feature"] < plain["bytes"]["feature"]
        assert rows["remote_unique"] < plain_rows["remote_unique"]


def check_tables(base: Base, name: str, folder: Path, result: dict[str, Any]) -> None:
    """Assert that learnable rows, their files included, are the same, and are looked for."""
    for rank in range(base.world.size):
        file = f"learnable-rank-{rank}.safetensors"
        assert (folder / name / file).read_bytes() == (folder / "plain" / file).read_bytes()
        assert len([*(folder / name / "checkpoints").glob(f"learnable-rank-{rank}-step-*")]) >= 2
    assert not list((folder / name).glob(".learnable*")), "a folder of mapped rows is left behind"
    if "cache" in CHANGES[name][0]:
        lookups = result["lookups"]
        hits, misses = map(sum, zip(*lookups.values(), strict=True))
        assert hits > 0
        assert misses > 0
        has_features = "device" in name or base.engine == "zero_hop in passes"
        assert ("paper" in lookups) == has_features, "features of other servers are looked for too"


def test_any_exact_engine_resumes_what_another_began(train, tmp_path):
    """But for rounding, also with other servers and ranks; learnable rows are dealt out anew."""

    def run(name: str, engine: str, world: World, **more: Any) -> dict[str, Any]:
        own = {"iterations_per_epoch": 3, "checkpoint_every": 2, "record_gradients": []}
        own |= {"run_dir": str(tmp_path / name)} | more
        case = case_of("types, learned rows", engine, world, 0, "rgcn")
        return train([(case, {"train": own})])[0].result

    whole = run("whole", "hop", World(2, 1), epochs=4)
    run("begun", "hop", World(2, 1), epochs=2)
    expected = read_tensors(CheckpointFiles(tmp_path / "whole").newest)  # type: ignore[arg-type]
    copies = tmp_path / "copies"
    for engine, world in ((PASSES, World(1, 1)), ("cooperative", World(2, 2))):
        shutil.copytree(tmp_path / "begun", tmp_path / engine)
        (tmp_path / engine / "summary.json").unlink()
        kept = {"checkpoint_copy": str(copies), "keep_checkpoints": 3}
        result = run(engine, engine, world, epochs=4, resume=True, **kept)
        assert result["losses"] == pytest.approx(whole["losses"], rel=1e-9), engine
        assert result["val"] == pytest.approx(whole["val"], rel=1e-9), engine
        # Nothing of the ranks before is left, and every copy is whole.
        files = CheckpointFiles(tmp_path / engine)
        owners = {file.name.split("-")[2] for file in files.folder.glob("learnable-*")}
        assert owners == {str(rank) for rank in range(world.size)}
        assert len(files.steps) == 3
        for file in files.folder.iterdir():
            assert (copies / file.name).read_bytes() == file.read_bytes()
        assert len(list(copies.iterdir())) == len(list(files.folder.iterdir()))
        shutil.rmtree(copies)
        tensors = read_tensors(files.newest)  # type: ignore[arg-type]
        assert tensors.keys() == expected.keys()
        for name, value in expected.items():
            assert tensors[name].numpy() == pytest.approx(value.numpy(), rel=1e-7, abs=1e-9), name
