"""Check a request to divide a graph by nodes, and estimate its cost, before the work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import MemoryBudget
from hopper.graph.publish import refuse_occupied
from hopper.graph.schema import GraphSchema
from hopper.partition.assign import check_request
from hopper.partition.balance import check_balance
from hopper.partition.halo import TopologyChoice
from hopper.partition.memory import MemoryEstimate, estimate_memory
from hopper.partition.metis_process import Backend, choose_backend
from hopper.partition.refine import Refiner
from hopper.partition.second_level import check_ranks, rank_bytes
from hopper.partition.stored_forms import RowForms, check_divisible, parse_row_forms
from hopper.partition.time_estimate import estimate_seconds, probe_rates
from hopper.partition.write import partitioned_bytes, table_bytes


@dataclass(frozen=True)
class DivisionRequest:
    """A request to divide nodes: the parsed parameters of :func:`hopper.partition.partition_graph`.

    Attributes
    ----------
    backend: which METIS; None for other methods.
    forms: the form that features are stored in, by table.
    """

    graph: GraphDirectory
    out: Path
    servers: int
    method: str
    seed: int
    method_options: Mapping[str, Any]
    backend: Backend | None
    balance: tuple[str, ...]
    refiner: Refiner | None
    topology: TopologyChoice
    by_dimension: bool
    forms: RowForms
    ranks_per_server: int

    @classmethod
    def parse(
        cls, graph: GraphDirectory, out: Path, servers: int, method: str, **options: Any
    ) -> DivisionRequest:
        """Parse and check the parameters.

        Raises
        ------
        RequestError: the request is impossible, or the destination is occupied.
        """
        schema, ranks = graph.schema, options["ranks_per_server"]
        check_request(schema, servers, method, options["method_options"])
        check_ranks(ranks, method)
        topology, features = options.pop("topology"), options.pop("features")
        choice, by_dimension = TopologyChoice.parse(topology), features == "by-dimension"
        _check_features(schema, servers, features, topology)
        forms = parse_row_forms(options.pop("feature_dtypes"), schema)
        if by_dimension:
            check_divisible(schema, forms)
        refuse_occupied(out)
        wanted, balance = options.pop("backend"), tuple(options.pop("balance"))
        backend = choose_backend(wanted) if method == "metis" else None
        check_balance(balance, schema, method, backend)
        if options["refiner"] is not None:
            if by_dimension:
                raise RequestError(
                    "--refine: moves whole rows to where they are read; with --features "
                    "by-dimension every server has a part of every row"
                )
            options["refiner"].check(graph, servers)
        return cls(
            *(graph, out, servers, method),
            backend=backend,
            balance=balance,
            topology=choice,
            by_dimension=by_dimension,
            forms=forms,
            **options,
        )

    @property
    def is_split(self) -> bool:
        """Return whether a server stores the in-edges of some nodes only."""
        return self.topology.name == "partitioned"

    def estimate(self, size: MemoryBudget) -> MemoryEstimate:
        """Estimate memory, disk space and time of the division.

        Parameters
        ----------
        size: limits what is in memory at a time.
        """
        estimate = estimate_memory(
            *(self.graph, self.servers, self.method, self.backend),
            split=self.is_split,
            balance=self.balance,
            refiner=self.refiner,
            size=size,
        )
        schema, disk = self.graph.schema, self.written_bytes(self.graph)
        parent = next(folder for folder in self.out.absolute().parents if folder.is_dir())
        seconds = estimate_seconds(schema, self.method, disk, probe_rates(parent))
        return replace(estimate, disk=disk, seconds=seconds)

    def written_bytes(self, graph: GraphDirectory) -> int:
        """Return the bytes on disk of the partitioned directory.

        Parameters
        ----------
        graph: has the rows in the form in which they will be stored.
        """
        copies = self.servers if self.by_dimension else 1
        more = table_bytes(graph, copies) - table_bytes(graph)
        more += rank_bytes(graph.schema, self.ranks_per_server)
        return partitioned_bytes(graph.schema, self.servers, split=self.is_split) + more


def _check_features(schema: GraphSchema, servers: int, features: str, topology: str) -> None:
    """Check how features are to be divided."""
    if features not in ("by-node", "by-dimension"):
        raise RequestError(f"features: expected by-node or by-dimension, given {features!r}")
    if features == "by-node":
        return
    if topology != "replicated":
        raise RequestError(
            f"features: by-dimension wants topology replicated, since every server computes with "
            f"the edges of all mini-batches; given {topology}"
        )
    for name, kind in schema.node_types.items():
        if kind.feature_dim is not None and kind.feature_dim < servers:
            raise RequestError(
                f"features: by-dimension wants a column a server at least; node type {name!r} has "
                f"{kind.feature_dim} for {servers} servers"
            )
