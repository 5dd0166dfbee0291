"""A loop of a user's own computes the gradients of ``zero_hop``, and what it stands on."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import own_loop
import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hopper
from hopper.bench.parity import read_recorded
from tests.docs.markdown_pages import read_snippets

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "own_loop.py"
STEPS = 10
# The iteration whose gradient the optimiser is not given at first.
BREAKS_AT = 7


class Broken(Exception):
    """The loop has broken down."""


def run_loop(parts: str, state: str, servers: list[str]) -> dict[str, Any]:
    """Run the example's loop as a rank, and return the gradients that its optimiser is given.

    It breaks down in the midst of its second epoch, and begins anew from what it has saved.
    """
    dist.init_process_group("gloo")
    gradients: list[list[float]] = []
    breaks_at = [BREAKS_AT]

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if len(gradients) in breaks_at:
            breaks_at.clear()
            raise Broken
        parameters = optimizer.param_groups[0]["params"]
        gradients.append(torch.cat([p.grad.flatten() for p in parameters]).tolist())

    hook = register_optimizer_step_pre_hook(note)
    file = Path(f"{state}-{dist.get_rank()}.pt")
    for _ in range(2):
        with suppress(Broken), hopper.connect(parts, servers) as graph:
            own_loop.train(graph, file, dtype=torch.float64)
    hook.remove()
    dist.destroy_process_group()
    return {"gradients": gradients, "broke": not breaks_at}


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_a_loop_of_one_s_own_computes_the_gradients_of_zero_hop(
    topology, parts_of, serve_partitions, train_cases, run_ranks, tmp_path
):
    """On two ranks over gloo, with two servers; the loop goes on from a state in mid-epoch."""
    parts = parts_of("items", topology)
    servers = serve_partitions(parts, 2)
    config = {
        "data": {"partitioned": str(parts)},
        "model": {"name": "own_loop:MeanSage", "layers": 2, "hidden": 8},
        "sampler": {"fanouts": [3, 2]},
        "train": {
            "engine": "zero_hop",
            "batch_size": 9,
            "epochs": 2,
            "seed": 3,
            "learning_rate": 0.01,
            "dtype": "float64",
            "evaluate_every": 0,
            "record_gradients": list(range(STEPS)),
            "run_dir": str(tmp_path / "run"),
        },
        "cluster": {"servers": servers},
    }
    train_cases([config], 2, tmp_path / "ranks")
    recorded = read_recorded(tmp_path / "run" / "gradients")
    names = [name for name, _ in own_loop.MeanSage(10, 6).named_parameters()]
    expected = [torch.cat([step.gradients[n].flatten() for n in names]) for step in recorded]
    # Rows of the other server come from its feature server, and then from its folder.
    for addresses in (servers, []):
        if topology == "partitioned" and not addresses:
            continue
        state = tmp_path / f"loop-{len(addresses)}"
        first, second = run_ranks(run_loop, 2, str(parts), str(state), addresses)
        assert first == second
        assert first["broke"]
        gradients = torch.tensor(first["gradients"], dtype=torch.float64)
        assert len(gradients) == len(expected) == STEPS
        for own, of_engine in zip(gradients, expected, strict=True):
            assert torch.equal(own, of_engine)


def test_the_page_shows_the_loop_that_is_tested():
    text, page = EXAMPLE.read_text(), REPOSITORY / "docs" / "howto" / "own-loop.md"
    loop, main, *_ = (s.text.strip() for s in read_snippets(page) if s.language == "python")
    assert text.endswith(f"{loop}\n\n\n{main}\n")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 60


def test_one_rank_has_all_roots_and_reads_all_rows(community_graph, parts):
    with hopper.connect(parts) as graph:
        schedule = graph.schedule(20, roots=np.arange(50, 100), seed=5)
        assert schedule.iterations == 3
        roots = np.concatenate([graph.own_roots(schedule.batch(0, n)) for n in range(3)])
        originals = graph.graph.original_ids("item")[roots]
        assert sorted(originals.tolist()) == list(range(50, 100))
        features = community_graph.features("item")
        assert features is not None
        assert np.array_equal(graph.rows.gather("features", "item", roots), features[originals])
        assert graph.rows.traffic.take()["feature"] > 0


def test_typed_graphs_have_blocks_of_all_relations(graph_of, parts_of):
    schema = graph_of("bare").schema
    with hopper.connect(parts_of("bare")) as graph:
        roots = graph.schedule(8).batch(0, 0).roots
        subgraph = graph.sampler([3, 2]).sample(roots, 0, 0)
        assert set(subgraph.typed_blocks()[0].blocks) == set(schema.relations)
        for name, kind in schema.node_types.items():
            if kind.feature_dim:
                rows = graph.rows.gather("features", name, subgraph.nodes[name])
                assert rows.shape == (subgraph.nodes[name].size, kind.feature_dim)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda parts: hopper.connect(parts, rank=0, world=3), "given rank 0 of 3"),
        (lambda parts: hopper.connect(parts, rank=2, world=2), "given rank 2 of 2"),
        (lambda parts: hopper.connect(parts, ["a:1"]), "expected 2 addresses"),
        (lambda parts: hopper.connect(parts, ["127.0.0.1:1"] * 2, timeout=0.5), "127.0.0.1:1"),
        (lambda parts: hopper.connect(parts / "none"), "none"),
        (lambda parts: hopper.connect(parts).sampler([0]), r"sampler.fanouts: .*positive"),
        (lambda parts: hopper.connect(parts).sampler([2], kind="ladies"), "sampler.kind|refused"),
        (lambda parts: hopper.connect(parts).sampler([2], knd="node"), "knd"),
        (lambda parts: hopper.connect(parts).sampler([2], kind="temporal"), "no times"),
        (lambda parts: hopper.connect(parts).schedule(9, roots=np.array([1, 1])), "distinct ids"),
        (lambda parts: hopper.connect(parts).schedule(9, roots=np.array([300])), r"\[0, 300\)"),
        (lambda parts: hopper.connect(parts).sampler([2], device="cuda"), "sampler.device"),
        (lambda parts: hopper.connect(parts).schedule(0), "batch_size: expected at least 1"),
        (lambda parts: hopper.connect(parts).schedule(99, drop_last=True), "no iteration for 83"),
    ],
)
def test_refusals_say_what_is_wrong(parts, call, text):
    with pytest.raises(hopper.HopperError, match=text):
        call(parts)


def test_graphs_that_are_not_divided_by_node_are_refused(parts_of):
    for parts in (parts_of("bare", "by relation"), parts_of("items", "by-dimension")):
        with pytest.raises(hopper.RequestError, match=f"connect: .*{parts}"):
            hopper.connect(parts)
