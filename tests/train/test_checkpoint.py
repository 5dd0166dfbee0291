"""Checkpoints without processes: what they restore, and which runs and files they refuse."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines.optimizer import Adam, Optimizer
from hopper.errors import RequestError
from hopper.hetero.learnable import LearnableRows, LearnableTable, Learning, TableShare
from hopper.hetero.row_storage import MappedStorage, MemoryStorage
from hopper.migrate.flat_model import FlatModel
from hopper.partition import PartitionBook, PartitionedGraph, partition_graph
from hopper.partition.placement import Placement
from hopper.timing.run_log import RunLog
from hopper.train import tensor_file
from hopper.train.checkpoint import (
    RunCheckpoints,
    read_checkpoint,
    restore_table,
    rows_to_save,
    save_checkpoint,
)
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import EPOCHS_FILE
from hopper.train.run_files import keep_epochs_before
from hopper.train.run_identity import find_moves, run_identity
from hopper.train.tensor_file import fill_tensors, read_facts, save_tensors
from hopper.train.trained_model import Progress

CPU = torch.device("cpu")
COUNTS = {"author": 90, "field": 30}
FILE = Path("step-1.safetensors")


@pytest.fixture(scope="module")
def partitions(community_graph, tmp_path_factory) -> dict[str, PartitionedGraph]:
    folder = tmp_path_factory.mktemp("parts")
    return {
        name: partition_graph(community_graph, folder / name, 2, "random", seed=seed)
        for name, seed in (("one", 0), ("other", 1))
    }


def identity(graph: PartitionedGraph, ranks: int = 2, **train: Any) -> dict[str, Any]:
    train = {"engine": "hop", "batch_size": 32} | train
    config = make_config({"data": {"partitioned": str(graph.path)}, "train": train})
    return run_identity(config, graph, Cluster(0, ranks, ranks // 2, CPU, 1.0))


@pytest.mark.parametrize(
    ("engine", "change", "refused"),
    [
        ("hop", {"ranks": 4}, "the roots of an iteration"),
        ("hop", {"engine": "locality"}, "whether the engine is exact"),
        ("hop", {"seed": 1}, "train.seed"),
        ("hop", {"learning_rate": 0.5}, "train.learning_rate"),
        ("hop", {"graph": "other"}, ""),
        ("hop", {"ranks": 4, "batch_size": 16}, ""),
        ("locality", {"graph": "other"}, "the division of the graph"),
        ("locality", {"ranks": 4, "batch_size": 16}, "train.batch_size"),
    ],
)
def test_a_run_goes_on_only_where_it_stays_the_same_but_for_rounding(
    engine, change, refused, partitions
):
    saved = identity(partitions["one"], engine=engine)
    change = {"engine": engine} | change
    now = identity(partitions[change.pop("graph", "one")], **change)
    if refused:
        with pytest.raises(RequestError, match=f"cannot resume: {refused} was"):
            find_moves(FILE, saved, now)
    else:
        assert find_moves(FILE, saved, now)


def test_a_run_does_not_go_on_with_moved_columns(partitions):
    now = identity(partitions["one"])
    tiers = [{"name": "tier", "categories": ["bronze", "gold"]}]
    moved = [{"name": "tier", "categories": ["gold", "platinum"]}]
    match = r"cannot resume: node: column 'tier' has the categories \[gold, platinum\]; the run was"
    with pytest.raises(RequestError, match=match):
        find_moves(
            FILE,
            now | {"columns of features": {"node": tiers}, "the graph": "before"},
            now | {"columns of features": {"node": moved}, "the graph": "now"},
        )


def make_share(
    name: str, storage: MemoryStorage, optimizer: str = "adam", rank: int = 0, world: int = 1
) -> TableShare:
    count = COUNTS[name]
    offsets = np.linspace(0, count, world + 1).astype(np.int64)
    return TableShare(
        LearnableTable(name, name, offsets, (name,)),
        Learning(4, torch.float64, 1, optimizer, 0.1, keeps=True),
        # Another division gives the rows other ids.
        np.random.default_rng(world).permutation(count),
        Placement(PartitionBook(world, {name: offsets.tolist()}), 1),
        Cluster(rank, world, 1, CPU, 1.0),
        storage,
    )


class Complete(list[Any]):
    """Models that are whole on every rank."""

    def complete(self, *_: Any, **__: Any) -> None:
        pass


class RunOfOneRank:
    """A model and learnable rows in training, and their checkpoints."""

    def __init__(self, folder: Path, kind: str, optimizer: str, keep: int = 2) -> None:
        storage = MemoryStorage(CPU)
        if kind != "memory":
            storage = MappedStorage(folder / "rows")
        cluster = Cluster(0, 1, 1, CPU, 1.0)
        self.rows = LearnableRows(cluster, [make_share(n, storage, optimizer) for n in COUNTS])
        for table in self.rows:
            if kind.startswith("held"):
                table.hold(8, np.arange(4, 12) if kind == "held" else None)
        packed = FlatModel(torch.nn.Linear(3, 2))
        self.model: Any = SimpleNamespace(progress=Progress(), state=SimpleNamespace(name=""))
        dense = Optimizer(packed, Adam(packed.parameters), learning_rate=0.1)
        self.trained: Any = SimpleNamespace(name="", packed=packed, optimizer=dense)
        config = make_config({"data": {"partitioned": "any"}, "train": {"keep_checkpoints": keep}})
        state = SimpleNamespace(
            cluster=cluster, learnable=self.rows, config=config, log=RunLog(None)
        )
        engine: Any = SimpleNamespace(state=state, models=Complete([self.trained]))
        self.checkpoints = RunCheckpoints(engine, [self.model], folder, {"seed": 1})

    def train_once(self, generator: np.random.Generator) -> None:
        wanted = {
            name: [generator.choice(count, int(generator.integers(0, 6)), replace=False)]
            for name, count in COUNTS.items()
        }
        fetched = self.rows.fetch(self.rows.ask(wanted, "here"), "here")
        for name, (ids,) in wanted.items():
            fetched.of(name, ids).square().sum().backward()
        fetched.push()
        fetched.step()
        self.trained.packed.gradients.copy_(
            torch.from_numpy(generator.standard_normal(self.trained.packed.gradients.numel()))
        )
        self.trained.optimizer.step()
        self.model.progress.step += 1

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that training changes, but for the progress."""
        has_best = self.model.progress.best_epoch is not None
        state = self.checkpoints._tensors()
        for table in self.rows:
            state |= table.state(has_best)
        return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("memory", "adam"), ("mmap", "adam"), ("held", "adam"), ("held, recent", "adagrad")],
)
def test_training_resumes_from_either_of_two_kept_checkpoints(kind, optimizer, tmp_path):
    """Training is interrupted at random steps, also between writing rows and the models."""
    generator, files = np.random.default_rng(5), CheckpointFiles(tmp_path)
    run, saved = RunOfOneRank(tmp_path, kind, optimizer), dict[int, Any]()
    for turn in range(60):
        run.train_once(generator)
        progress = run.model.progress
        if turn % 7 == 5:
            for table in run.rows:
                table.keep()
            progress.best_epoch = turn
        if turn % 2:
            continue
        run.checkpoints.save()
        run.checkpoints.finish()
        saved[progress.step] = run.state(), Progress(**vars(progress))
        assert len(files.steps) <= 2
        assert {step for *_, step in files.all_learnable()} >= set(files.steps)
        if generator.random() < 0.4:
            if len(files.steps) > 1 and generator.random() < 0.5:
                files.model(files.steps[0]).unlink()
            run = RunOfOneRank(tmp_path, kind, optimizer)
            run.checkpoints.load()
            state, progress = saved[files.steps[0]]
            assert run.model.progress == progress
            restored = run.state()
            assert restored.keys() == state.keys()
            assert all(torch.equal(restored[name], value) for name, value in state.items())
            assert max(step for *_, step in files.all_learnable()) == files.steps[0]
        if generator.random() < 0.1 and progress.best_epoch is not None:
            for table in run.rows:
                table.go_back()
    files.learnable(0, files.steps[1]).unlink()
    files.model(files.steps[0]).unlink()
    with pytest.raises(RequestError, match=r"no whole checkpoint: .*rank-0-step-\d+\.safetensors"):
        RunOfOneRank(tmp_path, kind, optimizer).checkpoints.load()
    run.checkpoints.forget()
    assert list(files.folder.iterdir()) == []


def test_a_rank_that_was_killed_before_it_wrote_costs_one_checkpoint(tmp_path):
    """Also if only one checkpoint is kept."""
    run, files = RunOfOneRank(tmp_path, "memory", "adam", keep=1), CheckpointFiles(tmp_path)
    for _ in range(3):
        run.train_once(np.random.default_rng(1))
        run.checkpoints.save()
        run.checkpoints.finish()
    files.learnable(0, 3).unlink()
    run.checkpoints.load()
    assert run.model.progress.step == 2


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_rows_move_to_another_number_of_ranks(ranks, tmp_path):
    files, generator = [tmp_path / f"{rank}.safetensors" for rank in range(3)], torch.Generator()
    expected: dict[str, dict[int, list[Any]]] = {"records": {}, "kept": {}}
    for rank, file in enumerate(files):
        table = make_share("author", MemoryStorage(CPU), rank=rank, world=3)
        state = table.state(with_kept=True)
        state["optimizer.author.steps"].fill_(7)
        for kind, rows in expected.items():
            tensor = state[f"{kind}.author"]
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
            rows |= dict(zip(table.originals.tolist(), tensor.tolist(), strict=True))
        save_checkpoint(file, {}, rows_to_save(table, with_kept=True))
    for rank in range(ranks):
        table = make_share("author", MemoryStorage(CPU), rank=rank, world=ranks)
        restore_table(table, True, files)
        state = table.state(with_kept=True)
        assert int(state["optimizer.author.steps"]) == 7
        for kind, rows in expected.items():
            moved = state[f"{kind}.author"].tolist()
            assert moved == [rows[node] for node in table.originals.tolist()]


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    file = tmp_path / "old.safetensors"
    save_tensors(file, {}, {"identity": {}, "progress": {"step": 3}, "format": 9})
    with pytest.raises(RequestError, match=r"of format 9, .*; expected format 2"):
        read_checkpoint(file)


def test_files_tell_their_rank_and_step(tmp_path):
    files = CheckpointFiles(tmp_path)
    files.learnable(0, 7).parent.mkdir(exist_ok=True)
    for file in (files.model(4), files.model(8), files.model(12), files.learnable(3, 8)):
        file.touch()
    (files.folder / "step-x.safetensors").touch()
    assert list(files.all_learnable()) == [(files.learnable(3, 8), 3, 8)]
    assert files.forget_models(keep=2) == ["step-4.safetensors"]
    assert files.steps == [12, 8]
    files.forget_models_after(8)
    assert files.newest == files.model(8)


def test_half_a_line_of_epochs_is_dropped(tmp_path):
    (tmp_path / EPOCHS_FILE).write_text('{"epoch": 0}\n{"epoch": 1}\n{"epoch": 2, "lo')
    assert keep_epochs_before(tmp_path, 2) == [{"epoch": 0}, {"epoch": 1}]
    assert (tmp_path / EPOCHS_FILE).read_text() == '{"epoch": 0}\n{"epoch": 1}\n'


def test_safetensors_reads_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_VALUES_AT_ONCE", 7)
    generator, file = torch.Generator().manual_seed(0), tmp_path / "tensors.safetensors"
    tensors = {
        "rows": torch.randn(11, 3, generator=generator, dtype=torch.float64),
        "turned": torch.randn(4, 5, generator=generator).t(),
        "half": torch.randn(9, generator=generator).to(torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
        "steps": torch.tensor(5),
        "one": torch.tensor([3]).expand(1),
        "none": torch.empty(0, 3),
    }
    # A category may be called "nan"; numbers that are not finite are spelled so.
    facts = {"identity": {"categories": ["inf", "nan"]}, "progress": {"losses": [math.inf, 1.0]}}
    save_tensors(file, tensors, facts)
    assert read_facts(file) == facts
    loaded = load_file(file)
    restored = {name: torch.zeros_like(value) for name, value in tensors.items()}
    fill_tensors(restored, file)
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)
        assert torch.equal(restored[name], value)
    restored["rows"] = torch.zeros(3, 11)
    with pytest.raises(RequestError, match=r"rows: expected shape \(3, 11\), found \(11, 3\)"):
        fill_tensors(restored, file)
    with pytest.raises(RequestError, match="of another model: has "):
        fill_tensors({}, file)
