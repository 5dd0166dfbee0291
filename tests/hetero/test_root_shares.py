"""Every root is aggregated once for each root relation, and finished once, on any ranks."""

import numpy as np
import pytest
import torch

from hopper.graph.schema import Relation
from hopper.hetero.root_shares import RootShares
from hopper.partition.description import WHOLE, Part, ServerPartition

A, B, C = (Relation(name, "to", "t") for name in "abc")
CPU = torch.device("cpu")


def make_partition(
    place: int, copies: int, *roots: Relation, part: Part = WHOLE
) -> ServerPartition:
    types = frozenset({"t", *(relation.src for relation in roots)})
    return ServerPartition(roots, place, copies, frozenset(roots), types, part)


LAYOUTS = {
    "one server": [make_partition(0, 1, A, B, C)],
    "two": [make_partition(0, 1, A, C), make_partition(0, 1, B)],
    "replicas": [make_partition(0, 2, A), make_partition(1, 2, A), make_partition(0, 1, B)],
    "replicas of all": [
        *(make_partition(place, 2, A) for place in range(2)),
        *(make_partition(place, 3, B) for place in range(3)),
    ],
    "parts": [
        make_partition(0, 1, A, B),
        *(make_partition(0, 1, C, part=Part(index, 2)) for index in range(2)),
    ],
}


@pytest.mark.parametrize("designated", [False, True])
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("ranks_per_server", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [0, 1, 7, 60])
def test_planned_routes_bring_every_row_to_its_rank(
    count, layout, ranks_per_server, reads, designated
):
    """Exchange rows that say (sending rank, place) as planned, and check who receives which."""
    partitions = LAYOUTS[layout]
    shares = RootShares(partitions, ranks_per_server, designated=designated)
    world = len(partitions) * ranks_per_server
    plans = [shares.plan(rank, count, reads=reads, device=CPU) for rank in range(world)]
    assert {relation for relations in shares.relations for relation in relations} == {
        relation for partition in partitions for relation in partition.roots
    }
    for group in range(len(shares.groups)):
        ranks = [rank for rank in range(world) if shares.group_of(rank) == group]
        places = np.concatenate([plans[rank].mine for rank in ranks])
        assert sorted(places) == list(range(count))
    assert sorted(np.concatenate([plan.finishing for plan in plans])) == list(range(count))

    def exchange(rows: list[torch.Tensor], route_name: str) -> list[torch.Tensor]:
        routes = [getattr(plan, route_name) for plan in plans]
        sent_pieces = [
            rank_rows.index_select(0, route.chosen).split(route.lengths)
            for rank_rows, route in zip(rows, routes, strict=True)
        ]
        for rank, route in enumerate(routes):
            assert [len(pieces[rank]) for pieces in sent_pieces] == route.counts
        return [torch.cat([pieces[rank] for pieces in sent_pieces]) for rank in range(world)]

    partials = [
        torch.tensor([[rank, place] for place in plan.mine], dtype=torch.int64).view(-1, 2)
        for rank, plan in enumerate(plans)
    ]
    for plan, received in zip(plans, exchange(partials, "partials"), strict=True):
        for group, order in enumerate(plan.by_group):
            ordered = received.index_select(0, order)
            assert ordered[:, 1].tolist() == plan.finishing.tolist()
            assert all(shares.group_of(rank) == group for rank in ordered[:, 0].tolist())
    finished = [torch.from_numpy(plan.finishing)[:, None] for plan in plans]
    for plan, received in zip(plans, exchange(finished, "finished"), strict=True):
        assert received.index_select(0, plan.rows_in)[:, 0].tolist() == plan.rows.tolist()
        assert plan.rows[plan.finishing_in_rows.numpy()].tolist() == plan.finishing.tolist()
        if reads:
            assert plan.mine_in_rows is not None
            assert plan.rows[plan.mine_in_rows.numpy()].tolist() == plan.mine.tolist()
        else:
            assert plan.mine_in_rows is None


def test_roots_are_shared_evenly_between_ranks():
    shares = RootShares(LAYOUTS["replicas"], 2)
    plans = [shares.plan(rank, 600, reads=True, device=CPU) for rank in range(6)]
    assert [plan.mine.size for plan in plans] == [150, 150, 150, 150, 300, 300]
    assert [plan.finishing.size for plan in plans] == [75, 75, 75, 75, 150, 150]
    designated = RootShares(LAYOUTS["replicas"], 2, designated=True)
    plans = [designated.plan(rank, 600, reads=True, device=CPU) for rank in range(6)]
    assert [plan.finishing.size for plan in plans] == [300, 300, 0, 0, 0, 0]
