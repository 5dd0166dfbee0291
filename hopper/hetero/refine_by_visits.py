"""Nodes move to the servers whose roots read them, by what presampled epochs read.

A method divides by edges, which all weigh the same; training reads over few of them often and over
others never. Draws do not depend on the division, so what each root will read is known before
there is any.
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
from hopper.partition.move_nodes import move_nodes, server_loads
from hopper.partition.refine import Refinement
from hopper.partition.shares import imbalance
from hopper.partition.symmetrise import type_starts
from hopper.partition.training import training_roots
from hopper.phases import Phases

_MOST_ROUNDS: Final = 8


@dataclass(frozen=True)
class VisitRefiner:
    """Moves nodes round by round, for as long as roots read fewer rows of other servers.

    A node is pulled to a server by the roots there that read it and, if it is a root, by the rows
    there that it reads. No server gets more than 5 % above the mean of what is balanced, nor of
    the rows that are read of it. Moves follow the counted epochs; whether they help is measured in
    one more.

    Attributes
    ----------
    fanouts: in-neighbours per relation, first hop first; -1 = all.
    seed: of the order of roots and of the draws.
    epochs: of training roots that are counted.
    """

    fanouts: tuple[int, ...]
    seed: int = 0
    epochs: int = 2

    def check(self, graph: GraphDirectory, servers: int) -> None:
        """See :class:`hopper.partition.refine.Refiner`."""
        if self.epochs < 1:
            raise RequestError(f"--refine-epochs: expected at least 1, given {self.epochs}")
        if not training_roots(graph).any():
            raise RequestError(
                f"--refine: visits are counted for training roots, and graph {graph.schema.name!r} "
                "has none"
            )

    def memory(self, schema: GraphSchema, servers: int, balance: Sequence[str]) -> int:
        """See :class:`hopper.partition.refine.Refiner`."""
        nodes = sum(kind.count for kind in schema.node_types.values())
        # Pulls; weights, twice while visits join them; the sampler's, homes and orders.
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
        """See :class:`hopper.partition.refine.Refiner`."""
        schema = graph.schema
        reads = RootReads(graph, self.fanouts, self.epochs, self.seed)
        with phases.phase("count visits"):
            visits = reads.visits()
        topologies = {relation: graph.topology(relation) for relation in schema.relations}
        weights = np.column_stack([balance.held(schema, topologies), visits])
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
        loads = [server_loads(each, visits[:, np.newaxis], servers)[:, 0] for each in (start, best)]
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
        refined = {t: best[starts[t] : starts[t] + own.size] for t, own in homes.items()}
        return Refinement(refined, description)
