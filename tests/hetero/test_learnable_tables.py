"""A rank's share of one table, several tables between ranks, and no table at all."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.hetero.learnable import (
    IDS,
    LearnableRows,
    LearnableTable,
    Learning,
    TableShare,
    first_rows,
)
from hopper.hetero.learnable.messages import RowMessages
from hopper.hetero.row_storage import MappedStorage, MemoryStorage
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement
from hopper.train.warm_start import save_learned_rows
from tests.hetero.learnable_rank import learn_rows

CPU = torch.device("cpu")
DIM = 3
# Of the one type of a graph that has features besides; ids of servers are no original ids.
ORIGINALS = np.array([4, 9, 0, 7, 2, 5, 8, 1, 6, 3])


def make_share(
    rank: int = 0,
    *,
    offsets: tuple[int, ...] = (0, 10),
    ranks_per_server: int = 1,
    storage: MemoryStorage | None = None,
    l2: float = 0.0,
    keeps: bool = True,
    **options: Any,
) -> TableShare:
    servers = len(offsets) - 1
    return TableShare(
        LearnableTable("item", "item", np.array(offsets), ("item",), **options),
        Learning(DIM, torch.float64, 5, "adagrad", 0.1, l2, keeps),
        ORIGINALS,
        # The nodes are all on the first server.
        Placement(PartitionBook(servers, {"item": [0] + servers * [10]}), ranks_per_server),
        Cluster(rank, servers * ranks_per_server, ranks_per_server, CPU, 1.0),
        storage or MemoryStorage(CPU),
    )


def update(share: TableShare, places: list[int], gradient: torch.Tensor) -> None:
    share.update(share.records.lend(np.array(places)), gradient)


@pytest.mark.parametrize("rank", range(4))
def test_ranks_share_rows_by_the_offsets_of_the_table(rank):
    share = make_share(rank, offsets=(0, 7, 10), ranks_per_server=2)
    owned_ids = [[0, 2, 4, 6], [1, 3, 5], [7, 9], [8]][rank]
    assert share.owned_ids().tolist() == owned_ids
    expected = first_rows(5, "item", ORIGINALS[owned_ids], DIM)
    assert share.records.rows.tolist() == expected.tolist()
    places = share.places_of(np.array(owned_ids[1:], np.int64))
    assert places.tolist() == list(range(1, len(owned_ids)))
    result = share.result()
    assert result[f"item{IDS}"].tolist() == ORIGINALS[owned_ids].tolist()
    assert torch.equal(result["item"], share.records.rows)


def test_frozen_rows_from_a_file_are_neither_changed_nor_saved(tmp_path):
    initial_rows = np.random.default_rng(0).random((10, DIM), np.float32)
    np.save(tmp_path / "item.npy", initial_rows)
    share = make_share(initial=tmp_path / "item.npy", frozen=True)
    assert share.records.rows.tolist() == initial_rows[ORIGINALS].astype(np.float64).tolist()
    # They have no optimiser's state, and nothing of them is saved or gone back to.
    assert share.records.stored.shape == (10, 1, DIM)
    assert share.state(True) == {}
    share.records.rows[1] = 0
    share.keep()
    share.go_back()
    assert not share.records.rows[1].any()


def test_an_update_changes_only_the_rows_that_were_read():
    share, gradient = make_share(l2=0.5), torch.ones(2, DIM, dtype=torch.float64)
    rows_before = share.records.rows.clone()
    update(share, [8, 3], gradient)
    rows_after = share.records.rows
    # The first step of Adagrad goes by the sign.
    step = gradient + 0.5 * rows_before[[8, 3]]
    expected = rows_before[[8, 3]] - 0.1 * step.sign()
    assert torch.allclose(rows_after[[8, 3]], expected, rtol=0, atol=1e-9)
    other_places = [place for place in range(10) if place not in (3, 8)]
    assert torch.equal(rows_after[other_places], rows_before[other_places])
    assert gradient.eq(1).all()


@pytest.mark.parametrize("kind", ["memory", "mmap", "held"])
def test_going_back_restores_the_kept_rows(kind, tmp_path):
    share = make_share(storage=MemoryStorage(CPU) if kind == "memory" else MappedStorage(tmp_path))
    if kind == "held":
        share.hold(4, np.array([0, 3, 5]))
    update(share, [0, 1], torch.ones(2, DIM, dtype=torch.float64))
    share.keep()
    kept_rows = share.result()["item"].clone()
    assert torch.equal(share.state(True)["kept.item"], kept_rows)
    assert "kept.item" not in share.state(False)
    update(share, [3, 1], torch.ones(2, DIM, dtype=torch.float64))
    assert not torch.equal(share.result()["item"], kept_rows)
    state = share.records.read(torch.tensor([3]))[:, 1]
    share.go_back()
    assert torch.equal(share.result()["item"], kept_rows)
    # The optimiser goes on from where it is.
    assert torch.equal(share.records.read(torch.tensor([3]))[:, 1], state)


def test_a_share_that_keeps_nothing_does_not_go_back():
    share = make_share(keeps=False)
    update(share, [2], torch.ones(1, DIM, dtype=torch.float64))
    share.keep()
    rows_after = share.records.rows.clone()
    share.go_back()
    assert torch.equal(share.records.rows, rows_after)
    assert list(share.state(with_kept=True)) == ["records.item"]


def test_without_tables_no_message_is_sent(tmp_path):
    """The second rank of the cluster does not exist, so any message would fail."""
    cluster = Cluster(0, 2, 1, CPU, 1.0)
    learnable = LearnableRows(cluster)
    nodes = {"item": [np.array([1, 2])]}
    fetched = learnable.fetch(learnable.ask(nodes, "here"), "here")
    learnable.read(nodes, "here")
    fetched.push(2.0)
    assert fetched.is_finite()
    assert fetched.squares("a norm") == 0.0
    fetched.step(0.5)
    assert fetched.collect() == {}
    assert learnable.ask(nodes, "here") == []
    assert learnable.take_lookups() == {}
    assert (list(learnable), len(learnable)) == ([], 0)
    save_learned_rows(tmp_path, cluster, learnable)
    assert list(tmp_path.iterdir()) == []
    assert not any(cluster.traffic.take().values())


class Computed(torch.autograd.Function):
    """Rows that no learnable row is part of. They record when their gradient is computed."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, events: list[str]) -> torch.Tensor:
        ctx.events = events
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.events.append("gradient of others")
        return gradient, None


@pytest.mark.parametrize("early", [True, False])
def test_gradients_may_leave_within_the_backward_pass(early, monkeypatch):
    events: list[str] = []
    send_back = RowMessages.start_back

    def record_start(*arguments: Any) -> Any:
        events.append("gradients leave")
        return send_back(*arguments)

    monkeypatch.setattr(RowMessages, "start_back", record_start)
    share, ids = make_share(), np.array([4, 1])
    learnable = LearnableRows(Cluster(0, 1, 1, CPU, 1.0), [share])
    rows_before = share.records.rows.clone()
    fetched = learnable.fetch(learnable.ask({"item": [ids]}, "here"), "here")
    if early:
        fetched.push_early()
    rows = torch.full((2, DIM), 2.0, dtype=torch.float64).requires_grad_()
    other_rows = Computed.apply(rows, events)
    (other_rows * fetched.of("item", ids)).sum().backward()
    assert events == [*["gradients leave"][:early], "gradient of others"]
    fetched.push()
    assert events.count("gradients leave") == 1
    assert fetched.squares("a norm") == 4 * 2 * DIM
    fetched.step()
    changed_rows = (share.records.rows != rows_before).any(1).nonzero().squeeze(1)
    assert changed_rows.tolist() == [1, 4]
    # Nothing holds what was fetched any longer than the iteration.
    reference = weakref.ref(fetched)
    del fetched
    assert reference() is None


@pytest.fixture(scope="module")
def ranks(run_ranks) -> dict[int, list[dict[str, Any]]]:
    """The results of every rank, by the number of ranks."""
    return {world: run_ranks(learn_rows, world, servers) for world, servers in ((1, 1), (4, 2))}


def test_several_ranks_learn_the_rows_that_one_rank_learns(ranks):
    (single_rank,), all_ranks = ranks[1], ranks[4]
    for table in ("item", "user"):
        ids = [value for rank_result in all_ranks for value in rank_result["ids"][table]]
        rows = [value for rank_result in all_ranks for value in rank_result["rows"][table]]
        assert sorted(ids) == single_rank["ids"][table]
        in_order = np.array(rows)[np.argsort(ids)]
        np.testing.assert_allclose(in_order, single_rank["rows"][table], rtol=0, atol=1e-12)
        for rank_result in all_ranks:
            assert rank_result["read"][table] == np.array(rows)[np.argsort(ids)].tolist()
    # Frozen rows stand still, others moved, and rows that nobody reads stand still too.
    expected = {
        name: first_rows(7, name, np.arange(10)[::-1][:count].copy(), DIM)
        for name, count in (("item", 10), ("user", 6))
    }
    assert single_rank["rows"]["user"] == expected["user"].tolist()
    changed_rows = (np.array(single_rank["rows"]["item"]) != expected["item"]).any(1)
    assert np.flatnonzero(changed_rows).tolist() == [0, 1, 3, 4, 9]


def test_gradients_are_collected_on_rank_0(ranks):
    (single_rank,), all_ranks = ranks[1], ranks[4]
    assert [rank_result["collected"] for rank_result in all_ranks[1:]] == [{}, {}, {}]
    gradients, expected = all_ranks[0]["collected"], single_rank["collected"]
    assert expected["model.learnable.item.ids"] == [0, 1, 3, 4, 9]
    assert expected["model.learnable.user.ids"] == [0, 1, 2, 5]
    # How often each row is read, counted group by group.
    times = np.array([1, 1, 1, 4, 2])[:, None]
    rows = np.array(expected["model.learnable.item"])
    np.testing.assert_allclose(expected["gradient.learnable.item"], 2 * times * rows, atol=1e-12)
    assert "gradient.learnable.user" not in expected
    assert gradients.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(gradients[key], values, rtol=0, atol=1e-12)
    squares = float(np.square(2 * times * rows).sum())
    for rank_result in (single_rank, *all_ranks):
        assert rank_result["squares"] == pytest.approx(squares, rel=1e-12)


def test_each_rank_fetches_a_remote_row_once(ranks):
    assert not any(ranks[1][0]["bytes"].values())
    sent_bytes = {
        cause: sum(rank_result["bytes"][cause] for rank_result in ranks[4])
        for cause in ("feature", "gradient", "control")
    }
    counts = [rank_result["remote"] for rank_result in ranks[4]]
    remote = {table: sum(count[table] for count in counts) for table in ("item", "user")}
    assert remote == {"item": 4, "user": 3}
    row = DIM * 8
    # An id is sent and a row comes back. Learned rows send a gradient. Each rank of the other
    # server gets a count for each table.
    assert sent_bytes == {
        "feature": (remote["item"] + remote["user"]) * (8 + row),
        "gradient": remote["item"] * row,
        "control": 4 * 2 * len(remote) * 4,
    }
