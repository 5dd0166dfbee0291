"""A rank's share of one table, several tables between ranks, and no table at all."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.cluster import Cluster
from hopper.hetero.learnable import (
    IDS,
    LearnableRows,
    LearnableTable,
    Learning,
    TableShare,
    first_rows,
)
from hopper.hetero.learnable.messages import RowMessages
from hopper.hetero.row_records import PickedRows
from hopper.hetero.row_storage import MappedStorage, MemoryStorage, RowStorage
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.learnable_checkpoints import LearnableCheckpoints, save_learned_rows

RANK_SCRIPT = Path(__file__).with_name("learnable_rank.py")
CPU = torch.device("cpu")
DIM = 3
# Of the one type of a graph that has features besides; ids of servers are no original ids.
ORIGINALS = np.array([4, 9, 0, 7, 2, 5, 8, 1, 6, 3])


def make(
    rank: int = 0,
    *,
    offsets: tuple[int, ...] = (0, 10),
    ranks_per_server: int = 1,
    storage: RowStorage | None = None,
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
def test_ranks_share_rows_by_the_offsets_of_the_table(rank: int) -> None:
    share = make(rank, offsets=(0, 7, 10), ranks_per_server=2)
    owned = [[0, 2, 4, 6], [1, 3, 5], [7, 9], [8]][rank]
    assert share.owned_ids().tolist() == owned
    expected = first_rows(5, "item", ORIGINALS[owned], DIM)
    assert share.records.rows.tolist() == expected.tolist()
    places = share.places_of(np.array(owned[1:], np.int64))
    assert places.tolist() == list(range(1, len(owned)))
    result = share.result()
    assert result[f"item{IDS}"].tolist() == ORIGINALS[owned].tolist()
    assert torch.equal(result["item"], share.records.rows)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("moments", [1, 2])
def test_updates_are_taken_back(moments: int, cached: bool) -> None:
    share = make()
    if cached:
        share.hold(3, None)
    states = []
    for turn in range(3):
        share.records.write_back()
        states.append({name: value.clone() for name, value in share.state(False).items()})
        share.remember()
        for places in ([turn, 5], [5, 7, turn + 1]):
            update(share, places, torch.full((len(places), DIM), 0.5 + turn, dtype=torch.float64))
    assert not torch.equal(share.state(False)["records.item"], states[2]["records.item"])
    share.undo(moments)
    for name, value in share.state(False).items():
        assert torch.equal(value, states[-moments][name])


def test_given_rows_that_stay_what_they_are(tmp_path: Path) -> None:
    given = np.random.default_rng(0).random((10, DIM), np.float32)
    np.save(tmp_path / "item.npy", given)
    share = make(initial=tmp_path / "item.npy", frozen=True)
    assert share.records.rows.tolist() == given[ORIGINALS].astype(np.float64).tolist()
    # They have no optimiser's state, and nothing of them is saved or gone back to.
    assert share.records.stored.shape == (10, 1, DIM)
    assert (share.count(), share.count_changed(), share.state(True)) == (0, 0, {})
    share.records.write_rows(torch.tensor([1]), torch.zeros(1, DIM, dtype=torch.float64))
    share.keep()
    share.go_back()
    assert not share.records.rows[1].any()


def test_an_update_is_of_the_rows_that_were_read() -> None:
    share, gradient = make(l2=0.5), torch.ones(2, DIM, dtype=torch.float64)
    before = share.records.rows.clone()
    update(share, [8, 3], gradient)
    after = share.records.rows
    # The first step of Adagrad goes by the sign.
    moved = gradient + 0.5 * before[[8, 3]]
    assert torch.allclose(after[[8, 3]], before[[8, 3]] - 0.1 * moved.sign(), rtol=0, atol=1e-9)
    others = [place for place in range(10) if place not in (3, 8)]
    assert torch.equal(after[others], before[others])
    assert gradient.eq(1).all()
    changed = share.changes(with_kept=False)["records.item"]
    assert isinstance(changed, PickedRows)
    assert changed.places.tolist() == [3, 8]
    assert (share.count(), share.count_changed()) == (10, 2)
    share.mark_saved()
    assert share.count_changed() == 0


@pytest.mark.parametrize("kind", ["memory", "mmap", "held"])
def test_going_back_is_of_what_changed_since(kind: str, tmp_path: Path) -> None:
    share = make(storage=MemoryStorage(CPU) if kind == "memory" else MappedStorage(tmp_path))
    if kind == "held":
        share.hold(4, np.array([0, 3, 5]))
    update(share, [0, 1], torch.ones(2, DIM, dtype=torch.float64))
    share.mark_saved()
    share.keep()
    kept = share.result()["item"].clone()
    assert torch.equal(share.state(True)["kept.item"], kept)
    assert "kept.item" not in share.state(False)
    assert share.count_changed() == 10
    share.mark_saved()
    update(share, [3, 1], torch.ones(2, DIM, dtype=torch.float64))
    assert not torch.equal(share.result()["item"], kept)
    state = share.records.read(torch.tensor([3]))[:, 1]
    share.go_back()
    assert torch.equal(share.result()["item"], kept)
    # The optimiser goes on from where it is.
    assert torch.equal(share.records.read(torch.tensor([3]))[:, 1], state)
    assert share.count_changed() == 2
    share.keep()
    changes = share.changes(with_kept=True)
    kept_changes = changes["kept.item"]
    assert isinstance(kept_changes, PickedRows)
    assert kept_changes.places.tolist() == []


def test_what_is_never_kept_takes_no_room() -> None:
    share = make(keeps=False)
    update(share, [2], torch.ones(1, DIM, dtype=torch.float64))
    share.keep()
    after = share.records.rows.clone()
    share.go_back()
    assert torch.equal(share.records.rows, after)
    assert list(share.state(with_kept=True)) == ["records.item"]


def test_no_tables_talk_to_nobody(tmp_path: Path) -> None:
    """The cluster's other rank is not there: any message would fail."""
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
    files = CheckpointFiles(tmp_path)
    checkpoints = LearnableCheckpoints(files, cluster, learnable, {}, keep=2)
    checkpoints.collect(1, with_kept=True)()
    checkpoints.check(1)
    checkpoints.load(1, with_kept=True)
    save_learned_rows(tmp_path, cluster, learnable)
    checkpoints.forget_all()
    assert list(tmp_path.iterdir()) == []
    assert not any(cluster.traffic.take().values())


class Computed(torch.autograd.Function):
    """Rows that are computed without any that is learned; their gradient tells when it is made."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, events: list[str]) -> torch.Tensor:
        ctx.events = events
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.events.append("gradient of others")
        return gradient, None


@pytest.mark.parametrize("early", [True, False])
def test_gradients_may_leave_within_the_backward_pass(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    start_back = RowMessages.start_back

    def told(*given: Any) -> Any:
        events.append("gradients leave")
        return start_back(*given)

    monkeypatch.setattr(RowMessages, "start_back", told)
    share, ids = make(), np.array([4, 1])
    learnable = LearnableRows(Cluster(0, 1, 1, CPU, 1.0), [share])
    before = share.records.rows.clone()
    fetched = learnable.fetch(learnable.ask({"item": [ids]}, "here"), "here")
    if early:
        fetched.push_early()
    others = Computed.apply(torch.full((2, DIM), 2.0, dtype=torch.float64).requires_grad_(), events)
    (others * fetched.of("item", ids)).sum().backward()
    assert events == [*["gradients leave"][:early], "gradient of others"]
    fetched.push()
    assert events.count("gradients leave") == 1
    assert fetched.squares("a norm") == 4 * 2 * DIM
    fetched.step()
    changed = (share.records.rows != before).any(1).nonzero().squeeze(1)
    assert changed.tolist() == [1, 4]
    # Nothing holds what was fetched any longer than the iteration.
    known = weakref.ref(fetched)
    del fetched
    assert known() is None


@pytest.fixture(scope="module")
def ranks(
    run_ranks: Callable[..., list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[dict[str, Any]]]:
    """By number of ranks, what they found."""
    folder = tmp_path_factory.mktemp("ranks")
    return {
        world: run_ranks(RANK_SCRIPT, world, folder / str(world), str(servers))
        for world, servers in ((1, 1), (4, 2))
    }


def test_several_ranks_learn_what_one_does(ranks: dict[int, list[dict[str, Any]]]) -> None:
    (alone,), together = ranks[1], ranks[4]
    for table in ("item", "user"):
        ids = [each for found in together for each in found["ids"][table]]
        rows = [each for found in together for each in found["rows"][table]]
        assert sorted(ids) == alone["ids"][table]
        np.testing.assert_allclose(
            np.array(rows)[np.argsort(ids)], alone["rows"][table], rtol=0, atol=1e-12
        )
        for found in together:
            assert found["read"][table] == np.array(rows)[np.argsort(ids)].tolist()
    # Frozen rows stand still, others moved, and rows that nobody reads stand still too.
    expected = {
        name: first_rows(7, name, np.arange(10)[::-1][:count].copy(), DIM)
        for name, count in (("item", 10), ("user", 6))
    }
    assert alone["rows"]["user"] == expected["user"].tolist()
    moved = (np.array(alone["rows"]["item"]) != expected["item"]).any(1)
    assert np.flatnonzero(moved).tolist() == [0, 1, 3, 4, 9]


def test_gradients_are_collected_on_rank_0(ranks: dict[int, list[dict[str, Any]]]) -> None:
    (alone,), together = ranks[1], ranks[4]
    assert [found["collected"] for found in together[1:]] == [{}, {}, {}]
    found, expected = together[0]["collected"], alone["collected"]
    assert expected["model.learnable.item.ids"] == [0, 1, 3, 4, 9]
    assert expected["model.learnable.user.ids"] == [0, 1, 2, 5]
    # How often each row is read, in groups of their own.
    times = np.array([1, 1, 1, 4, 2])[:, None]
    rows = np.array(expected["model.learnable.item"])
    np.testing.assert_allclose(expected["gradient.learnable.item"], 2 * times * rows, atol=1e-12)
    assert "gradient.learnable.user" not in expected
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=0, atol=1e-12)
    squares = float(np.square(2 * times * rows).sum())
    for each in (alone, *together):
        assert each["squares"] == pytest.approx(squares, rel=1e-12)


def test_each_row_crosses_once_a_rank(ranks: dict[int, list[dict[str, Any]]]) -> None:
    assert not any(ranks[1][0]["bytes"].values())
    sent = {
        cause: sum(found["bytes"][cause] for found in ranks[4])
        for cause in ("feature", "gradient", "control")
    }
    remote = {
        table: sum(found["remote"][table] for found in ranks[4]) for table in ("item", "user")
    }
    assert remote == {"item": 4, "user": 3}
    row = DIM * 8
    # An id there and a row back; a gradient where it is learned; and how many of each table, to
    # each rank of the other server.
    assert sent == {
        "feature": (remote["item"] + remote["user"]) * (8 + row),
        "gradient": remote["item"] * row,
        "control": 4 * 2 * len(remote) * 4,
    }
