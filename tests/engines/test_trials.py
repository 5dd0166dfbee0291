"""Trials trained at once equal the same trials trained alone.

Guards against: a model that meets a group twice or never, another trial's dropout, shape or
learning rate, gradients averaged over trials, updates away from home, divisors of another batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hopper.config import load_config, make_config
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles

from .typed_cases import COUNTS, make_graph

# Every case meets a world.
WORLDS = [
    (2, 1, ["own draws, nothing pre-gathered", "some stop early"]),
    (2, 2, ["more trials than ranks"]),
    (4, 1, ["fewer roots than ranks", "one trial, in passes"]),
]
EPOCHS = 2
# 83 training nodes: a short last batch; batches of 1 leave ranks without roots.
CASES: dict[str, dict[str, Any]] = {
    "more trials than ranks": {
        "trials": [
            {},
            {"model.hidden": 5, "train.learning_rate": 0.03, "train.weight_decay": 0.01},
            {"model.hidden": 12, "model.dropout": 0.6, "train.model_seed": 8},
            {"train.optimizer": "sgd", "train.learning_rate": 0.5, "model.dropout": 0.0},
            {"model.name": "gat", "model.heads": 2, "model.hidden": 4, "train.clip_norm": 0.5},
            {"model.name": "gcn", "train.model_seed": 4},
        ],
    },
    "fewer roots than ranks": {
        "trials": [{"train.model_seed": 1}, {"model.hidden": 3}],
        "train": {"batch_size": 1, "iterations_per_epoch": 3},
    },
    "one trial, in passes": {
        "trials": [{"model.dropout": 0.5}],
        "train": {"micro_batch": 3},
    },
    "own draws, nothing pre-gathered": {
        "trials": [
            {"train.seed": 5, "train.model_seed": 2},
            {"train.seed": 6, "model.hidden": 5},
            {"train.model_seed": 5},
        ],
        "share_sampling": False,
        "hop": {"pregather": False},
        "train": {"micro_batch": 5},
    },
    "some stop early": {
        "trials": [{}, {"train.learning_rate": 1e-9}, {"train.model_seed": 7}],
        "train": {"patience": 1, "epochs": 4, "batch_size": 20},
    },
}


def base(partitioned: Path, run_dir: Path, cluster: dict[str, Any], **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(partitioned)},
        "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
        "sampler": {"fanouts": [4, 3]},
        "train": {
            "engine": "hop",
            "batch_size": 15,
            "epochs": EPOCHS,
            "learning_rate": 0.01,
            "dtype": "float64",
            "seed": 3,
            "checkpoint_every": 10_000,
            "run_dir": str(run_dir),
        }
        | train,
        "hop": {"merge": "off"},
        "cluster": cluster,
    }


def configure_together(case: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Configure a run that trains all of a case's trials at once."""
    values["train"] |= case.get("train", {})
    values["hop"] = {
        "replicas": "independent",
        "trials": case["trials"],
        "share_sampling": case.get("share_sampling", True),
    } | case.get("hop", {})
    return values


def configure_alone(
    case: dict[str, Any], overrides: dict[str, Any], values: dict[str, Any], engine: str
) -> dict[str, Any]:
    """Configure a run that trains one trial by itself."""
    values["train"] |= {**case.get("train", {}), "engine": engine}
    for name, value in overrides.items():
        section, _, key = name.partition(".")
        values[section][key] = value
    return values


def trial_files(run_dir: Path, trial: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = run_dir / f"trial-{trial}"
    lines = (folder / "epochs.jsonl").read_text().splitlines()
    return json.loads((folder / "summary.json").read_text()), [json.loads(x) for x in lines]


def final_parameters(run_dir: Path, prefix: str) -> dict[str, Any]:
    """Read the parameters of the checkpoint that the last epoch leaves behind."""
    tensors = load_file(CheckpointFiles(run_dir).newest)
    start = f"{prefix}model."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


@pytest.fixture(scope="module")
def parts(community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("parts")
    for servers in (1, 2, 4):
        partition_graph(community_graph, folder / str(servers), servers, "metis", backend="pymetis")
    return folder


@pytest.mark.parametrize(("servers", "ranks_per_server", "names"), WORLDS)
def test_every_trial_equals_itself_trained_alone(
    servers: int,
    ranks_per_server: int,
    names: list[str],
    parts: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    partitioned = parts / str(servers)
    addresses = serve_partitions(partitioned, servers) if servers > 1 else []
    cluster = {"servers": addresses, "ranks_per_server": ranks_per_server}
    configs: dict[tuple[Any, ...], dict[str, Any]] = {}
    cases = {name: CASES[name] for name in names}
    for number, (name, case) in enumerate(cases.items()):
        run_dir = tmp_path / str(number)
        configs[name,] = configure_together(case, base(partitioned, run_dir, cluster))
        for index, overrides in enumerate(case["trials"]):
            values = base(partitioned, tmp_path / f"{number}-{index}", cluster)
            configs[name, index] = configure_alone(case, overrides, values, "model_centric")
    world = servers * ranks_per_server
    results = train_cases(list(configs.values()), world, tmp_path / "cases")
    by_name = dict(zip(configs, results, strict=True))

    stopped = 0
    for number, (name, case) in enumerate(cases.items()):
        epochs_run = set()
        for index in range(len(case["trials"])):
            expected = by_name[name, index]
            summary, epochs = trial_files(tmp_path / str(number), index)
            losses = [loss for epoch in epochs for loss in epoch["iteration_losses"]]
            assert losses == pytest.approx(expected["losses"], rel=1e-9), (name, index)
            assert [epoch["val"] for epoch in epochs] == expected["val"], (name, index)
            single = tmp_path / f"{number}-{index}"
            joint = final_parameters(tmp_path / str(number), f"trial-{index}.")
            alone = final_parameters(single, "")
            assert joint.keys() == alone.keys()
            for key, value in alone.items():
                assert joint[key] == pytest.approx(value, rel=1e-7, abs=1e-10), (name, index, key)
            alone_summary = json.loads((single / "summary.json").read_text())
            assert summary["scores"] == alone_summary["scores"]
            assert summary["best_epoch"] == alone_summary["best_epoch"]
            epochs_run.add(len(epochs))
        stopped += len(epochs_run) > 1
    assert stopped == ("some stop early" in cases), "no trial stopped before another"


def test_features_are_read_once_for_all_trials(
    parts: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    servers = 2
    cluster = {"servers": serve_partitions(parts / "2", servers), "ranks_per_server": 1}
    case = CASES["more trials than ranks"]
    separate = {"trials": [{"train.seed": 3}, {"train.seed": 4}], "share_sampling": False}
    shared, zero_hop, own_draws = train_cases(
        [
            configure_together(case, base(parts / "2", tmp_path / "shared", cluster)),
            configure_alone({}, {}, base(parts / "2", tmp_path / "zero_hop", cluster), "zero_hop"),
            configure_together(separate, base(parts / "2", tmp_path / "own", cluster)),
        ],
        servers,
        tmp_path / "cases",
    )
    # Six trials fetch what the engine that fetches least does for one.
    assert shared["bytes"]["feature"] == zero_hop["bytes"]["feature"] > 0
    assert shared["rows"] == zero_hop["rows"]
    assert own_draws["bytes"]["feature"] > zero_hop["bytes"]["feature"]
    # Around the ring with parameters, gradients and loss; home without the parameters.
    trials = json.loads((tmp_path / "shared" / "summary.json").read_text())["trials"]
    elements = [(servers - 1) * (2 * t["parameters"] + 1) + t["parameters"] + 1 for t in trials]
    iterations = 3
    assert shared["bytes"]["model"] == iterations * 8 * sum(elements)
    assert shared["bytes"]["gradient"] == 0


def test_a_trial_s_folder_holds_its_ordinary_configuration(
    parts: Path, train_cases: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    case = CASES["more trials than ranks"]
    single = {"ranks_per_server": 1}
    values = base(parts / "1", tmp_path / "run", single, epochs=1)
    seeds = base(parts / "1", tmp_path / "seeds", single, epochs=1)
    train_cases(
        [configure_together(case, values), configure_together({"trials": []}, seeds)],
        1,
        tmp_path / "cases",
    )
    for index, overrides in enumerate(case["trials"]):
        config = load_config(tmp_path / "run" / f"trial-{index}" / "config.json")
        expected = configure_alone(
            {}, overrides, base(parts / "1", Path(), single, epochs=1), "zero_hop"
        )
        expected["train"]["run_dir"] = ""
        assert config == make_config(expected | {"hop": {}}), index
    seeded = load_config(tmp_path / "seeds" / "trial-0" / "config.json")
    assert (seeded.train.seed, seeded.train.model_seed) == (3, 3)
    assert not (tmp_path / "seeds" / "trial-1").exists()


def test_trials_on_a_typed_graph_may_have_different_models(
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    partition_graph(make_graph(tmp_path / "graph", tuple(COUNTS)), tmp_path / "parts", 2, "random")
    cluster = {"servers": serve_partitions(tmp_path / "parts", 2), "ranks_per_server": 1}
    case = {"trials": [{}, {"model.name": "rgat", "model.heads": 2}, {"model.name": "hgt"}]}

    def typed(folder: str) -> dict[str, Any]:
        values = base(tmp_path / "parts", tmp_path / folder, cluster)
        return values | {"model": {"name": "rgcn", "layers": 2, "hidden": 8}}

    configs = [configure_together(case, typed("together"))]
    configs += [
        configure_alone(case, overrides, typed(f"alone-{index}"), "zero_hop")
        for index, overrides in enumerate(case["trials"])
    ]
    _, *expected = train_cases(configs, 2, tmp_path / "cases")
    for index, result in enumerate(expected):
        _, epochs = trial_files(tmp_path / "together", index)
        losses = [loss for epoch in epochs for loss in epoch["iteration_losses"]]
        assert losses == pytest.approx(result["losses"], rel=1e-9)
        assert [epoch["val"] for epoch in epochs] == result["val"]


LINK_CASES: dict[str, dict[str, Any]] = {
    # Rows of other widths, and decoders of their own.
    "links": {
        "trials": [
            {},
            {"model.hidden": 6, "task.decoder": "distmult"},
            {"task.decoder": "mlp", "task.dim": 5, "train.learning_rate": 0.03},
            {"model.name": "gat", "model.heads": 2, "model.hidden": 4, "train.model_seed": 8},
        ],
        "task": {"negatives": "joint", "num_negatives": 3},
        "train": {"micro_batch": 5, "more_metrics": ["hits@3"]},
    },
    "links, own draws": {
        "trials": [{"train.seed": 5}, {"train.seed": 6, "task.dim": 3}],
        "share_sampling": False,
        "task": {"negatives": "in_batch", "num_negatives": 3, "corrupt": "tail"},
    },
    "links, at their times": {
        "trials": [{"model.hidden": 5}, {"task.decoder": "distmult"}],
        "task": {"negatives": "uniform", "num_negatives": 3},
        "sampler": {"kind": "temporal"},
    },
    "labels": {
        "trials": [{"model.hidden": 5}, {"task.decoder": "bilinear"}, {"model.dropout": 0.5}],
        "train": {"more_metrics": ["macro_f1"]},
    },
}


# Every case meets a world. How worlds differ is tested above.
LINK_WORLDS = [
    (2, 1, ["links"]),
    (2, 2, ["links, own draws", "labels"]),
    (3, 1, ["links, at their times"]),
]


@pytest.mark.parametrize(("servers", "ranks_per_server", "names"), LINK_WORLDS)
def test_every_trial_of_links_equals_itself_trained_alone(
    servers: int,
    ranks_per_server: int,
    names: list[str],
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """Negatives, left-out edges, decoders and scores are equal too."""
    near, world = Relation("item", "near", "item"), servers * ranks_per_server
    topology = community_graph.topology(near)
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    ends = np.stack([topology.indices, dst])
    order = np.random.default_rng(2).permutation(dst.size)
    splits = {"train": order[:60], "val": order[60:90], "test": order[90:120]}
    cluster = {}
    for name, labels in (("links", None), ("labels", {near: ends.sum(0) % 3})):
        if not any(case_name.partition(",")[0] == name for case_name in names):
            continue
        features = {"item": np.asarray(community_graph.features("item"))}
        graph = GraphDirectory.from_arrays(
            tmp_path / name,
            *({near: ends}, features, labels, splits),
            times={near: ends.sum(0) % 9},
            target=near,
        )
        partition_graph(graph, tmp_path / f"{name} divided", servers, "random")
        addresses = serve_partitions(tmp_path / f"{name} divided", servers)
        cluster[name] = {"servers": addresses, "ranks_per_server": ranks_per_server}

    def values_of(name: str, run_dir: Path) -> dict[str, Any]:
        kind = name.split(",")[0]
        values = base(tmp_path / f"{kind} divided", run_dir, cluster[kind])
        case = LINK_CASES[name]
        values["sampler"] |= case.get("sampler", {})
        return values | {"task": dict(case.get("task", {}))}

    cases = {name: LINK_CASES[name] for name in names}
    configs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, (name, case) in enumerate(cases.items()):
        configs[name,] = configure_together(case, values_of(name, tmp_path / str(number)))
        for index, overrides in enumerate(case["trials"]):
            values = values_of(name, tmp_path / f"{number}-{index}")
            configs[name, index] = configure_alone(case, overrides, values, "zero_hop")
    results = train_cases(list(configs.values()), world, tmp_path / "cases")
    by_name = dict(zip(configs, results, strict=True))
    for number, (name, case) in enumerate(cases.items()):
        for index in range(len(case["trials"])):
            expected = by_name[name, index]
            summary, epochs = trial_files(tmp_path / str(number), index)
            losses = [loss for epoch in epochs for loss in epoch["iteration_losses"]]
            assert losses == pytest.approx(expected["losses"], rel=1e-10), (name, index)
            assert [epoch["val"] for epoch in epochs] == expected["val"], (name, index)
            single = tmp_path / f"{number}-{index}"
            joint = final_parameters(tmp_path / str(number), f"trial-{index}.")
            alone = final_parameters(single, "")
            assert joint.keys() == alone.keys()
            for key, value in alone.items():
                assert joint[key] == pytest.approx(value, rel=1e-8, abs=1e-10), (name, index, key)
            alone_summary = json.loads((single / "summary.json").read_text())
            assert summary["scores"] == alone_summary["scores"]
            assert alone_summary["scores"]["test"]
