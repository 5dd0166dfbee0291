"""What fixed configurations train, in float64, to be compared after a change to how it is done.

usage: python -m benchmarks.same_results --out DIR [--against DIR] [--only WORDS]

Every engine, on graphs of one type and of several, with dropout, merging, learnable rows, caches,
other samplers, a resumed run and trials, on one to four servers, with one and two ranks each. For
each: losses of all iterations, scores, bytes by cause, and of all recorded gradients and of the
best model a norm and a product with a fixed random vector, so that equal numbers are equal
gradients.

``--against``, an earlier ``--out``, tells for each configuration the largest relative difference
and the bytes before and after, and writes them to ``DIR/comparison.md`` and ``comparison.json``; 1
where a difference is above 1e-12 or more was sent.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from safetensors.numpy import load_file

from hopper.bench.machine import commit, machine, tell_machine, versions
from hopper.bench.train_process import train_in_process
from hopper.config import make_config
from hopper.files.whole_files import write_text
from hopper.hetero.learnable import IDS
from hopper.process.signal_handlers import end_on_signals
from hopper.train.results import EPOCHS_FILE, GRADIENTS_FOLDER, main_score
from hopper.train.tensor_file import BEST_MODEL_FILE

SECONDS_A_RUN: Final = 600.0
LARGEST_DIFFERENCE: Final = 1e-12
RESULT_FILE: Final = "result.json"
PAGE_FILE: Final = "README.md"
COMPARISON_FILE: Final = "comparison.json"
COMPARISON_PAGE: Final = "comparison.md"
ROOT: Final = Path(__file__).resolve().parents[1]

Values = dict[str, dict[str, Any]]

GRAPHS: Final = {"one": ("uk-like", "0.005"), "typed": ("mag-like", "0.001")}
"""of one type; of several, most of which have no features"""
PARTITIONS: Final = {
    "one-1": ("one", "--servers 1 --method metis"),
    "one-2": ("one", "--servers 2 --method metis"),
    "one-2-split": ("one", "--servers 2 --method metis --topology partitioned"),
    "one-3": ("one", "--servers 3 --method random"),
    "one-4": ("one", "--servers 4 --method metis"),
    "typed-2": ("typed", "--servers 2 --method metis"),
    "typed-3": ("typed", "--servers 3 --method random"),
    "typed-2-meta": ("typed", "--servers 2 --method meta"),
}
TRAIN: Final[dict[str, Any]] = {
    "dtype": "float64",
    "batch_size": 64,
    "epochs": 2,
    "iterations_per_epoch": 3,
    "learning_rate": 0.01,
    "record_gradients": [0, 2, 5],
    "threads": 1,
    "seed": 11,
}
SAGE: Final = {"name": "sage", "layers": 3, "hidden": 16, "dropout": 0.3}
RGCN: Final = {"name": "rgcn", "layers": 2, "hidden": 16, "dropout": 0.3}
RGAT: Final = {"name": "rgat", "layers": 2, "hidden": 16, "heads": 2, "dropout": 0.3}
HGT: Final = {"name": "hgt", "layers": 2, "hidden": 16, "heads": 2, "dropout": 0.3}
TWO_RANKS: Final = {"ranks_per_server": 2}
ON_DISK: Final = {"storage": "mmap"}


@dataclass(frozen=True)
class Fixed:
    """One configuration.

    partitioned: a key of :data:`PARTITIONS`. resumed: whether a second run continues the first,
    with an epoch more.
    """

    partitioned: str
    engine: str
    model: dict[str, Any]
    others: Values
    resumed: bool = False

    def configure(self, partitions: Path) -> Values:
        """Return the values of the case's configuration."""
        values: Values = {
            "data": {"partitioned": str(partitions / self.partitioned)},
            "model": self.model,
            "sampler": {"fanouts": [4] * self.model["layers"]},
            **self.others,
        }
        values["train"] = TRAIN | {"engine": self.engine} | self.others.get("train", {})
        return values


def _make_case(
    partitioned: str, engine: str, model: dict[str, Any], resumed: bool = False, **others: Any
) -> Fixed:
    return Fixed(partitioned, engine, model, others, resumed)


FIXED: Final = {
    "model_centric, one process": _make_case("one-1", "model_centric", SAGE),
    "model_centric, two ranks a server": _make_case(
        "one-2", "model_centric", SAGE, cluster=TWO_RANKS
    ),
    "model_centric, rows held": _make_case(
        "one-2", "model_centric", SAGE, cache={"policy": "benefit", "size": "20%"}
    ),
    "model_centric, resumed": _make_case(
        "one-2", "model_centric", SAGE, True, train={"checkpoint_every": 2}
    ),
    "locality": _make_case("one-3", "locality", SAGE),
    "hop, four servers": _make_case("one-4", "hop", SAGE, hop={"merge": "off"}),
    "hop, one step merged": _make_case("one-3", "hop", SAGE, hop={"merge": 1}),
    "hop, gradients alone": _make_case(
        "one-2", "hop", SAGE, hop={"merge": "off", "migrate": "gradients"}, cluster=TWO_RANKS
    ),
    "hop, trials": _make_case(
        "one-2", "hop", SAGE,
        hop={"merge": "off", "replicas": "independent"},
        train={"record_gradients": []},
    ),
    "zero_hop, gat, two ranks a server": _make_case(
        "one-2", "zero_hop", SAGE | {"name": "gat", "heads": 2}, cluster=TWO_RANKS
    ),
    "zero_hop, deepgcn, labor": _make_case(
        "one-3", "zero_hop", SAGE | {"name": "deepgcn"},
        sampler={"kind": "labor", "fanouts": [4, 4, 4]},
    ),
    "cooperative, sage": _make_case("one-4", "cooperative", SAGE),
    "cooperative, gcn, two ranks a server": _make_case(
        "one-2", "cooperative", SAGE | {"name": "gcn"}, cluster=TWO_RANKS
    ),
    "cooperative, gat, layer-wise samples": _make_case(
        "one-3", "cooperative", SAGE | {"name": "gat", "heads": 2},
        sampler={"kind": "layer", "layer_sizes": [64, 64, 64]},
    ),
    "cooperative, divided topology": _make_case("one-2-split", "cooperative", SAGE),
    "cooperative, film": _make_case("one-2", "cooperative", SAGE | {"name": "film"}),
    "typed model_centric, rgcn, two ranks a server": _make_case(
        "typed-2", "model_centric", RGCN, cluster=TWO_RANKS
    ),
    "typed model_centric, records held": _make_case(
        "typed-2", "model_centric", RGCN, learnable=ON_DISK,
        cache={"policy": "benefit", "size": "20%"},
    ),
    "typed hop, hgt": _make_case("typed-3", "hop", HGT, hop={"merge": "off"}),
    "typed zero_hop, rgat, two ranks a server": _make_case(
        "typed-2", "zero_hop", RGAT, cluster=TWO_RANKS
    ),
    "typed zero_hop, resumed": _make_case(
        "typed-3", "zero_hop", RGCN, True, train={"checkpoint_every": 2}
    ),
    "typed cooperative, rgcn, two ranks a server": _make_case(
        "typed-2", "cooperative", RGCN, cluster=TWO_RANKS
    ),
    "typed cooperative, rgat": _make_case("typed-3", "cooperative", RGAT),
    "typed cooperative, hgt": _make_case("typed-2", "cooperative", HGT),
    "raf, rgcn, two ranks a server": _make_case("typed-2-meta", "raf", RGCN, cluster=TWO_RANKS),
    "raf, rgat, tables per server": _make_case(
        "typed-2-meta", "raf", RGAT, learnable={"tables": "per_server_table"}
    ),
    "raf, hgt": _make_case("typed-2-meta", "raf", HGT),
    "raf, designated worker": _make_case("typed-2-meta", "raf", RGCN, raf={"reduce": "designated"}),
}  # fmt: skip


def main() -> int:
    """Train all configurations. Return 1 if something differs from the other side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--against", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="WORDS", help="those whose name has WORDS")
    options = parser.parse_args()
    console = Console()
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="same-results-") as name, end_on_signals():
        work = Path(name)
        cases = {name: case for name, case in FIXED.items() if options.only in name}
        make_partitions(work, {case.partitioned for case in cases.values()})
        for name, case in cases.items():
            runs[name] = _train(name, case, work)
            losses = runs[name]["losses"]
            console.print(f"{name}: losses {losses[0]:.6f} ... {losses[-1]:.6f}")
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        "runs": runs,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / RESULT_FILE, _format_by_run(result))
    write_text(options.out / PAGE_FILE, "\n".join(_page(result)) + "\n")
    if options.against is None:
        return 0
    rows = _compare(json.loads((options.against / RESULT_FILE).read_text()), result)
    head = {key: value for key, value in result.items() if key != "runs"}
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{json.dumps(head)[:-1]},\n"rows": [\n{lines}\n]}}\n'
    write_text(options.out / COMPARISON_FILE, text)
    page = "\n".join(_tell_comparison(rows, options.against, result)) + "\n"
    write_text(options.out / COMPARISON_PAGE, page)
    console.print(page, markup=False, highlight=False)
    return 0 if all(row["equal"] for row in rows) else 1


def _format_by_run(result: dict[str, Any]) -> str:
    """Write JSON with a line for each side's setting, and one for each configuration."""
    head = json.dumps({key: value for key, value in result.items() if key != "runs"})
    runs = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(run)}" for name, run in result["runs"].items()
    )
    return f'{head[:-1]},\n"runs": {{\n{runs}\n}}}}\n'


def _page(result: dict[str, Any]) -> list[str]:
    lines = [
        "# What fixed configurations train, in float64",
        "",
        f"- {result['when'][:10]}, commit `{result['commit'][:12]}`; "
        f"{tell_machine(result['machine'])}",
        "- `python -m benchmarks.same_results --out DIR`; `--against` this folder compares",
        "",
        "| configuration | loss, first and last | scores | kB sent | tensors kept |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, run in result["runs"].items():
        first, last = run["losses"][0], run["losses"][-1]
        scores = ", ".join("-" if score is None else f"{score:.4f}" for score in run["scores"])
        sent_bytes = sum(run["bytes"].values())
        lines.append(
            f"| {name} | {first:.6f}, {last:.6f} | {scores} | {sent_bytes / 1e3:,.0f} | "
            f"{len(run['tensors'])} |"
        )
    return lines


def make_partitions(work: Path, names: set[str]) -> None:
    """Write the named partitioned directories."""
    for graph in {PARTITIONS[name][0] for name in names}:
        preset, scale = GRAPHS[graph]
        _hopper("dataset", "make", preset, "--scale", scale, "--out", str(work / graph))
    for name in sorted(names):
        graph, words = PARTITIONS[name]
        _hopper("partition", str(work / graph), *words.split(), "--out", str(work / name))


def _hopper(*words: str) -> None:
    command = [sys.executable, "-m", "hopper.cli", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _train(name: str, fixed: Fixed, work: Path) -> dict[str, Any]:
    run_dir = work / f"run-{zlib.crc32(name.encode())}"
    config = make_config(fixed.configure(work))
    file = work / "config.json"
    file.write_text(config.model_dump_json())
    summary = train_in_process(name, file, run_dir, [], SECONDS_A_RUN)
    if fixed.resumed:
        words = ["--train.resume=true", "--train.epochs=3"]
        summary = train_in_process(f"{name}, resumed", file, run_dir, words, SECONDS_A_RUN)
    epochs = [json.loads(line) for line in (run_dir / EPOCHS_FILE).read_text().splitlines()]
    sent_bytes: dict[str, int] = {}
    for epoch in epochs:
        for cause, count in epoch["bytes"].items():
            sent_bytes[cause] = sent_bytes.get(cause, 0) + count
    scores = [main_score(summary, split) for split in ("val", "test")]
    return {
        "losses": [loss for epoch in epochs for loss in epoch["iteration_losses"]],
        "scores": [*(epoch["val"] for epoch in epochs), *scores],
        "bytes": sent_bytes,
        "tensors": _sketches(run_dir),
    }


def _sketches(run_dir: Path) -> dict[str, list[float]]:
    """Return the norm of every recorded tensor, and its product with a vector drawn for its
    name."""
    sketches = {}
    files = [*run_dir.rglob(f"{GRADIENTS_FOLDER}/*.safetensors"), *run_dir.rglob(BEST_MODEL_FILE)]
    for file in sorted(files):
        for name, tensor in load_file(file).items():
            if name.startswith("model.") or name.endswith(IDS):
                continue
            values = tensor.astype(np.float64).ravel()
            values_drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(
                values.size
            )
            key = f"{file.relative_to(run_dir).with_suffix('')}: {name}"
            sketches[key] = [float(np.linalg.norm(values)), float(values @ values_drawn)]
    return sketches


def _compare(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare each configuration that both sides have: differences of its numbers, and its
    bytes."""
    rows = []
    for name, now in after["runs"].items():
        then = before["runs"].get(name)
        if then is None:
            continue
        row: dict[str, Any] = {
            "configuration": name,
            "losses": _difference(then["losses"], now["losses"]),
            "tensors": _tensor_difference(then["tensors"], now["tensors"]),
            "scores": _difference(then["scores"], now["scores"]),
            "bytes_before": sum(then["bytes"].values()),
            "bytes_after": sum(now["bytes"].values()),
        }
        most = max(row[key] for key in ("losses", "tensors", "scores"))
        row["equal"] = most <= LARGEST_DIFFERENCE and row["bytes_after"] <= row["bytes_before"]
        rows.append(row)
    return rows


def _tell_comparison(
    rows: list[dict[str, Any]], against: Path, result: dict[str, Any]
) -> Iterator[str]:
    before = json.loads((against / RESULT_FILE).read_text())["commit"]
    yield f"# Fixed configurations: commit `{result['commit'][:12]}` after `{before[:12]}`"
    yield ""
    yield f"- {result['when'][:10]}; {tell_machine(result['machine'])}; float64"
    yield f"- `python -m benchmarks.same_results --out DIR --against {against.name}`"
    yield (
        "- largest relative differences of losses, of recorded gradients and the best model, and "
        "of scores; bytes that servers sent, of all causes"
    )
    yield ""
    yield "| configuration | losses | tensors | scores | bytes before | after |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row['configuration']} | {row['losses']:.1e} | {row['tensors']:.1e} | "
            f"{row['scores']:.1e} | {row['bytes_before']:,} | {row['bytes_after']:,} |"
        )


def _difference(before: list[float | None], after: list[float | None]) -> float:
    """Return the largest difference over the largest number; infinite where numbers are missing."""
    if [value is None for value in before] != [value is None for value in after]:
        return float("inf")
    a, b = (np.array([value for value in side if value is not None]) for side in (before, after))
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-300)) if a.size else 0.0


def _tensor_difference(before: dict[str, list[float]], after: dict[str, list[float]]) -> float:
    """Return the largest difference over a tensor's norm, or over a millionth of the largest norm
    of its moment if that is more."""
    if before.keys() != after.keys():
        return float("inf")
    largest: dict[str, float] = {}
    for key, (norm, _) in before.items():
        moment = key.partition(":")[0]
        largest[moment] = max(norm, largest.get(moment, 0.0))
    return max(
        max(abs(norm - after[key][0]), abs(product - after[key][1]))
        / max(norm, 1e-6 * largest[key.partition(":")[0]])
        for key, (norm, product) in before.items()
    )


if __name__ == "__main__":
    sys.exit(main())
