"""DistDGL beside Hopper's engines: as DGL 1.1.3 has it, and on GraphBolt as DGL 2.1.0 has it.

What runs in DistDGL's own environment (the other modules here) imports nothing of Hopper's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.emulate.network import INTERFACE, end_processes
from hopper.bench.emulate.train import threads_per_rank
from hopper.config import Config
from hopper.errors import ClusterError
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph

MODELS: Final = ("sage", "gat", "rgcn")
ENVIRONMENTS: Final = Path(__file__).with_name("environments")
"""written by make_environment.sh"""
GRAPH_FILE: Final = "graph.json"
_HERE: Final = Path(__file__).parent
_NAME: Final = "shared"
_PORT: Final = 30050
_RUN_SECONDS: Final = 1800.0
_LAST_CHARACTERS: Final = 3000


@dataclass(frozen=True)
class DistDGL:
    """One version of DistDGL.

    Attributes
    ----------
    name: of a side's label, and the label of its runs. role: with its version, for errors.
    batches: of a trainer's own nodes, as its examples do it; or of random ones, as all engines of
        Hopper but ``locality`` have them.
    python: its environment's interpreter.
    """

    name: str
    role: str
    python: Path
    batches: Literal["local", "random"] = "local"
    graphbolt: bool = False

    @property
    def note(self) -> str:
        """How it was tuned, and what differs."""
        return (
            f"{self.role}: servers in processes of their own, sampling inside the trainers "
            "(`DGL_NUM_SAMPLER=0`), as many threads as Hopper's ranks, the allocator told not to "
            f"return memory at every request; {self.batches} batches; GAT without the self loops "
            "that Hopper's has, R-GCN with rows of learned types in `DistEmbedding`."
        )

    def why_not(self, config: Config) -> str | None:
        """Return why it cannot train a configuration here, as the end of a sentence; None where it
        can."""
        if config.model.name not in MODELS:
            return f"it has no {config.model.name} here"
        other = [key for key in ("bases", "diagonal_blocks") if getattr(config.model, key)]
        if other or not config.model.root_weight or not config.model.input_weights:
            return "its R-GCN has a matrix for each relation and for each type's own rows"
        if config.model.aggregator != "mean":
            return f"its GraphSAGE takes means, and not {config.model.aggregator}"
        if not config.sampler.is_node_wise or config.sampler.kind == "full":
            return f"it draws node-wise, and not {config.sampler.kind}"
        if not self.python.is_file():
            environment = self.python.parents[1].name
            return f"run benchmarks/peers/make_environment.sh {environment} first"
        return None

    def join(
        self, config: Config, graph: GraphDirectory, parts: PartitionedGraph, work: Path
    ) -> Training:
        """Divide the graph for DistDGL, every node on the server where Hopper has it; return what
        trains the configuration.

        Parameters
        ----------
        work: a folder for what is kept between runs.

        Raises
        ------
        ClusterError: it cannot divide the graph; quotes its last words.
        """
        handed, divided = work / "handed", work / ("graphbolt" if self.graphbolt else "distdgl")
        if not (handed / GRAPH_FILE).is_file():
            hand_out(graph, parts, handed)
        if not (divided / f"{_NAME}.json").is_file():
            shutil.rmtree(divided, ignore_errors=True)
            script = str(_HERE / "distdgl_divide.py")
            kind = ["graphbolt"] if self.graphbolt else []
            command = [str(self.python), script, str(handed), str(divided), _NAME, *kind]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS)
            if ended.returncode:
                shutil.rmtree(divided, ignore_errors=True)
                last = ended.stderr[-_LAST_CHARACTERS:]
                raise ClusterError(f"{self.role}, dividing: exit code {ended.returncode}:\n{last}")
        description = json.loads((handed / GRAPH_FILE).read_text())
        return Training(self, config, description, divided / f"{_NAME}.json")


@dataclass(frozen=True)
class Training:
    """A configuration on one version of DistDGL; a guest of an A/B.

    Attributes
    ----------
    description: the graph that was handed out, in numbers.
    partitioned: DistDGL's own description of the parts.
    """

    peer: DistDGL
    config: Config
    description: dict[str, Any]
    partitioned: Path

    @property
    def label(self) -> str:
        """See :class:`hopper.bench.guest.Guest`."""
        return self.peer.name

    @property
    def folder(self) -> str:
        """See :class:`hopper.bench.guest.Guest`."""
        return self.peer.name

    def train(self, cluster: EmulatedCluster, round_index: int, out: Path) -> dict[str, Any]:
        """Train over the hosts once; see :class:`hopper.bench.guest.Guest`. Only the first round is
        scored."""
        out.mkdir(parents=True)
        addresses = [host.network.address for host in cluster.hosts]
        ip_config, result = out / "ip_config.txt", out / "result.json"
        ip_config.write_text("".join(f"{address} {_PORT}\n" for address in addresses))
        config = self.config
        job = {
            **self.description,
            "name": _NAME,
            "graphbolt": self.peer.graphbolt,
            "partitioned": str(self.partitioned),
            "ip_config": str(ip_config),
            "hosts": len(addresses),
            "addresses": addresses,
            "interface": INTERFACE,
            "threads": threads_per_rank(cluster, 1),
            "limit_seconds": _RUN_SECONDS,
            "batches": self.peer.batches,
            "model": config.model.name,
            "fanouts": config.sampler.fanouts,
            "batch_size": config.train.batch_size,
            "hidden": config.model.hidden,
            "heads": config.model.heads,
            "head": config.model.head,
            "in_dim": self.description["types"][self.description["target"]]["dim"],
            "learning_rate": config.train.learning_rate,
            "epochs": config.train.epochs,
            "iterations": config.train.iterations_per_epoch,
            "score": round_index == 0 and config.train.evaluate_every > 0,
            "result": str(result),
        }
        (out / "job.json").write_text(json.dumps(job, indent=1))
        self._run(cluster, out)
        record: dict[str, Any] = json.loads(result.read_text())
        return record

    def _run(self, cluster: EmulatedCluster, out: Path) -> None:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for index, host in enumerate(cluster.hosts):
                command = [
                    *host.prefix,
                    "unshare",
                    "--mount",
                    "--propagation",
                    "private",
                    str(self.peer.python),
                    str(_HERE / "distdgl_host.py"),
                    str(out / "job.json"),
                    "--host",
                    str(index),
                ]
                with (out / f"host-{index}.log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
                    )
            self._await(processes, out)
        except BaseException:
            for host in cluster.hosts:
                end_processes(host.network.namespace)
            raise
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()

    def _await(self, processes: Sequence[subprocess.Popen[bytes]], out: Path) -> None:
        """Wait until all hosts have ended well, or one of them has not."""
        deadline = time.monotonic() + _RUN_SECONDS
        while True:
            codes = [process.poll() for process in processes]
            failed = next((i for i, code in enumerate(codes) if code), None)
            if failed is not None:
                last = (out / f"host-{failed}.log").read_text(errors="replace")
                raise ClusterError(
                    f"{self.peer.role}, host {failed}: exit code {codes[failed]}:\n"
                    f"{last[-_LAST_CHARACTERS:]} (all of it: {out})"
                )
            if None not in codes:
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.peer.role}: not through after {_RUN_SECONDS:g} s: {out}")
            time.sleep(0.1)


def hand_out(graph: GraphDirectory, parts: PartitionedGraph, out: Path) -> None:
    """Write a graph with the homes that its nodes have.

    ``graph.json`` tells servers, target and its classes, by type the number of nodes and the width
    of features (None = rows are learned), and relations. By type there are ``homes-TYPE.npy`` and
    ``features-TYPE.npy``, by place of a relation ``src-PLACE.npy`` and ``dst-PLACE.npy``, and
    ``labels.npy``, ``train.npy`` and ``test.npy`` (ids) of the target.

    Parameters
    ----------
    parts: the same graph, divided.
    out: a folder that does not exist yet.
    """
    out.mkdir(parents=True)
    schema, save = graph.schema, lambda name, array: np.save(out / f"{name}.npy", array)
    target = schema.target_type()
    for name, kind in schema.node_types.items():
        save(f"homes-{name}", parts.book.home(name, np.array(parts.global_ids(name))))
        if kind.feature_dim:
            save(f"features-{name}", graph.features(name))
    for place, relation in enumerate(schema.relations):
        topology = graph.topology(relation)
        degrees = topology.in_degrees
        save(f"src-{place}", topology.indices.astype(np.int64))
        save(f"dst-{place}", np.repeat(np.arange(degrees.size), degrees))
    save("labels", graph.labels(target))
    for split in ("train", "test"):
        save(split, graph.split(split))
    description = {
        "servers": parts.book.servers,
        "target": target,
        "classes": schema.labels[target].classes,
        "types": {
            name: {"count": kind.count, "dim": kind.feature_dim}
            for name, kind in schema.node_types.items()
        },
        "relations": [list(relation) for relation in schema.relations],
    }
    (out / GRAPH_FILE).write_text(json.dumps(description, indent=1) + "\n")


def environment_of(name: str) -> Path:
    """Return the path of the interpreter of a system's environment, whether it exists or not."""
    return ENVIRONMENTS / name / "bin" / "python"


_OWN: Final = environment_of("distdgl")
PEERS: Final[Mapping[str, DistDGL]] = MappingProxyType(
    {
        peer.name: peer
        for peer in (
            DistDGL("distdgl", "DistDGL 1.1.3", _OWN),
            DistDGL("distdgl-random", "DistDGL 1.1.3, random batches", _OWN, batches="random"),
            DistDGL(
                "graphbolt", "DistDGL 2.1.0 on GraphBolt", environment_of("graphbolt"),
                graphbolt=True,
            ),
        )
    }
)  # fmt: skip
"""other systems, by the name that stands for them among an experiment's sides"""
