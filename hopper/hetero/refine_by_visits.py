"""Moves nodes to the servers whose roots read them, as counted in presampled epochs.

Other methods weigh all edges alike, but training reads over some edges often and over others never.
Draws do not depend on the division, so the reads of each root are known before there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.hetero.root_reads import RootReads
from hopper.partition.balance import Balance, number_of_constraints
from hopper.partition.describe import imbalance
from hopper.partition.refine import Refinement, move_nodes, server_loads
from hopper.partition.stacked_ids import type_starts
from hopper.partition.training import training_roots
from hopper.timing.phases import Phases

_MOST_ROUNDS: Final = 8


@dataclass(frozen=True)
class VisitRefiner:
    """Moves nodes round by round, while this reduces the remote rows that roots read.

    A server pulls a node by the number of its roots that read the node. If the node is a root, the
    server also pulls it by the number of its rows that the root reads. No server gets more than 5 %
    above the mean of any balanced quantity, or of the visits of its rows. Moves follow the counted
    epochs, and one more epoch measures whether they help.

    Attributes
    ----------
    fanouts: in-neighbours per relation, first hop first; -1 = all.
    seed: the seed of the order of roots and of the draws.
    epochs: the number of epochs of training roots that are counted.
    """

    fanouts: tuple[int, ...]
    seed: int = 0
    epochs: int = 2

    def check(self, graph: GraphDirectory, servers: int) -> None:
        """Refuse a graph without training roots, or no epoch to count."""
        if self.epochs < 1:
            raise RequestError(f"--refine-epochs: expected at least 1, given {self.epochs}")
        if not training_roots(graph).any():
            raise RequestError(
                f"--refine: visits are counted for training roots, and graph {graph.schema.name!r} "
                "has none"
            )

    def memory(self, schema: GraphSchema, servers: int, balance: Sequence[str]) -> int:
        """Estimate the bytes of memory that refining needs."""
        nodes = sum(kind.count for kind in schema.node_types.values())
        # Pulls; weights, which exist twice while visits are added; the sampler, homes and orders.
        constraints = 2 * number_of_constraints(schema, balance) + 1
        return nodes * (4 * servers + 8 * constraints + 72)

    def refine(
        self,
        graph: GraphDirectory,
        homes: Mapping[str, NDArray[np.int32]],
        balance: Balance,
        servers: int,
        phases: Phases,
    ) -> Refinement:
        """Move nodes, and describe how many remote rows this saves."""
        schema = graph.schema
        reads = RootReads(graph, self.fanouts, self.epochs, self.seed)
        with phases.phase("count visits"):
            visits = reads.visits()
        weights = np.column_stack([balance.balanced_weights(graph), visits])
        start = best = np.concatenate([homes[name] for name in schema.node_types])
        with phases.phase("move nodes to where they are read") as progress:
            pull, before = reads.run(start, servers, progress)
            after = before
            for _ in range(_MOST_ROUNDS):
                moved = best.copy()
                if not move_nodes(moved, pull, weights):
                    break
                pull, read = reads.run(moved, servers, progress)
                if read.remote >= after.remote:
                    break
                best, after = moved, read
        loads = [server_loads(home, visits[:, np.newaxis], servers)[:, 0] for home in (start, best)]
        description: dict[str, Any] = {
            "by": "visits",
            "fanouts": list(self.fanouts),
            "epochs": self.epochs,
            "seed": self.seed,
            "remote_rows_before": round(before.remote_share, 6),
            "remote_rows_after": round(after.remote_share, 6),
            "visits_balance_before": imbalance(loads[0]),
            "visits_balance_after": imbalance(loads[1]),
            "moved": int((start != best).sum()),
        }
        starts = type_starts(schema)
        refined = {
            name: best[starts[name] : starts[name] + servers_of.size]
            for name, servers_of in homes.items()
        }
        return Refinement(refined, description)
