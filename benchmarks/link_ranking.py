"""Ranking of test links among all entities of a knowledge graph, beside PyKEEN's.

usage: python -m benchmarks.link_ranking --out DIR [--entities 14541] [--relations 237]
           [--links 310116] [--test 20466]

The graph has the sizes of FB15k-237 (Toutanova and Chen, 2015), with random ends, and relations
whose numbers of links fall like 1/n. An R-GCN computes rows of 200 numbers, untrained, and DistMult
scores links. Every test link is ranked for both ends among all entities, without those that are
known links. PyKEEN (``benchmarks/peers/make_environment.sh pykeen``) is given the same rows, the
same vectors of relations and the same links, with batches of ``--batch`` links.

Each side is a new process with one thread for each core, and ranks other links before it is
measured. A line has the seconds of ranking (looking up known links counts, computing rows does
not), the memory in MiB that it took at its peak, beyond what the process held before, or the MRR,
which has to be the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.distdgl import ENVIRONMENTS
from benchmarks.rounds import Results, make_parser, positive, take_turns
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.training_parts import make_objective
from hopper.features import PartitionedRows, open_graph
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Scene, Wanted, make_inference
from hopper.partition import partition_graph
from hopper.rehearsal.world import ThreadCluster, rehearse
from hopper.tasks import decoder_of, find_target
from hopper.train.evaluate_links import make_evaluator

WIDTH, RUN_SECONDS = 200, 1800.0
PARTS, FILE = "parts", "links.npz"
OWN, PYKEEN = "Hopper", "PyKEEN 1.11.1"
AGREES = 1e-4
"""relative difference of MRRs that roundings of scores may make"""
PEER = Path(__file__).with_name("peers") / "pykeen_ranking.py"


def make_graph(folder: Path, entities: int, relations: int, links: int, test: int) -> None:
    """Write a divided graph of one server, and what PyKEEN reads."""
    generator = np.random.default_rng(1)
    share = 1 / np.arange(1, relations + 1)
    of = generator.choice(relations, 2 * links, p=share / share.sum())
    of[:relations] = np.arange(relations)
    ends = generator.integers(0, entities, (2, of.size))
    # Each link once, some of them left over.
    _, first = np.unique((of * entities + ends[0]) * entities + ends[1], return_index=True)
    first = np.sort(first)[:links]
    first = first[np.argsort(of[first], kind="stable")]
    of, ends = of[first], ends[:, first]
    order = generator.permutation(links)
    splits = {"test": order[:test], "val": order[test : 2 * test], "train": order[2 * test :]}
    keys = [("entity", f"r{number}", "entity") for number in range(relations)]
    graph = GraphDirectory.from_arrays(
        folder / "graph",
        {key: ends[:, of == number] for number, key in enumerate(keys)},
        {"entity": generator.standard_normal((entities, WIDTH), np.float32)},
        splits={name: np.sort(ids) for name, ids in splits.items()},
        target=keys,
        options=ImportOptions(),
    )
    partition_graph(graph, folder / PARTS, 1, "random")
    arrays = {}
    for name in splits:
        found = graph.links(name)
        arrays[name] = np.stack((found.src, found.relations, found.dst), 1)
    rank_here(folder, arrays)
    np.savez(folder / FILE, allow_pickle=False, **arrays)


def rank_here(folder: str | Path, arrays: dict[str, Any] | None = None) -> dict[str, float]:
    """Rank the test links as Hopper's evaluation does. Return seconds, MiB and MRR; or only add
    the rows and the vectors of relations to ``arrays``."""
    config = make_config(
        {
            "data": {"partitioned": str(Path(folder) / PARTS)},
            "model": {"name": "rgcn", "layers": 1, "hidden": WIDTH},
            "sampler": {"fanouts": [-1]},
            "task": {"decoder": "distmult"},
            "train": {"engine": "zero_hop"},
        }
    )
    torch.manual_seed(1)
    request = Request(config, open_graph(config))
    model, target = make_model(request), find_target(config, request.schema)
    found: dict[str, float] = {}

    def work(cluster: ThreadCluster, rows: PartitionedRows) -> None:
        learned = LearnableRows(cluster)
        scene = Scene(request, cluster, rows, torch.float32, learned, target.width)
        inference = make_inference(scene, model)
        everything = Wanted("all", np.arange(request.schema.node_types["entity"].count))
        ids, encoded = inference.rows(model, everything)
        if arrays is not None:
            by_id = np.empty(encoded.shape, np.float32)
            by_id[request.graph.original_ids("entity")[ids]] = encoded.detach().numpy()
            arrays["rows"] = by_id
            arrays["relations"] = decoder_of(model).get_parameter("relations").detach().numpy()
            return
        evaluator = make_evaluator(inference, make_objective(config, request.schema))
        evaluator.score(model, "val", by_class=False)  # warms up
        compute_rows, seconds, held = inference.ends, [0.0], [0.0]

        def timed(*words: Any) -> Any:
            begun = time.perf_counter()
            ends = compute_rows(*words)
            seconds[0] += time.perf_counter() - begun
            Path("/proc/self/clear_refs").write_text("5")
            held[0] = memory("VmRSS")
            return ends

        inference.ends = timed  # type: ignore[method-assign]
        begun = time.perf_counter()
        scored = evaluator.score(model, "test", by_class=False)
        all_seconds = time.perf_counter() - begun
        found["seconds"], found["MRR"] = all_seconds - seconds[0], scored.by_metric["mrr"]
        found["MiB"] = memory("VmHWM") - held[0]

    with torch.no_grad():
        rehearse(request, work, None, RUN_SECONDS)
    return found


def memory(key: str) -> float:
    """Return a number of MiB that the kernel counts of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--entities", type=positive, default=14_541)
    parser.add_argument("--relations", type=positive, default=237)
    parser.add_argument("--links", type=positive, default=310_116)
    parser.add_argument("--test", type=positive, default=20_466)
    parser.add_argument("--batch", type=positive, default=256, help="links at once, of PyKEEN")
    options = parser.parse_args(arguments)
    results = Results("link-ranking", options.out)

    def run(command: Sequence[str]) -> dict[str, float]:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        sizes = options.entities, options.relations, options.links, options.test
        make_graph(Path(folder), *sizes)
        code = f"from benchmarks.link_ranking import *; print(json.dumps(rank_here({folder!r})))"
        python = str(ENVIRONMENTS / "pykeen" / "bin" / "python")
        sides = {
            OWN: lambda _: run([sys.executable, "-c", code]),
            PYKEEN: lambda _: run([python, str(PEER), f"{folder}/{FILE}", str(options.batch)]),
        }
        measured = take_turns(sides, options.rounds, warm_up=0)
    facts = [
        (side, measure, float(np.median(of_side.pop(measure))))
        for measure in ("MRR", "MiB")
        for side, of_side in measured.items()
    ]
    cell = "-".join(map(str, sizes))
    results.add(cell, measured, {OWN: [PYKEEN]}, facts)
    ranks = [value for _, measure, value in facts if measure == "MRR"]
    if np.ptp(ranks) > AGREES * ranks[0]:
        sys.exit(f"error: the sides have different MRRs: {ranks}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
