"""Collectives give the right numbers, count their bytes, and name a rank that does not come."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import HashStore

from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.cluster.rank_store import RankStore
from hopper.device.choice import choose_device
from hopper.errors import ConfigError, DeadlineExceeded, RankLost, RankSilent
from hopper.rehearsal.clock import Link
from hopper.rehearsal.world import run_ranks as run_threads


def call_collectives(cluster: Cluster) -> dict[str, Any]:
    """Call every collective once, as one rank of four; returns what came and what was counted."""
    rank, results = cluster.rank, dict[str, Any]()
    results["server"] = cluster.server
    cluster.traffic.take()

    total = torch.full((1000,), float(rank))
    cluster.all_reduce(total, "gradient", "adding")
    results["sum"] = total.unique().tolist()
    total = torch.full((1000,), float(rank))
    cluster.all_reduce(total, "gradient", "adding", apart=400)
    results["apart"] = [part.unique().tolist() for part in (total[:600], total[600:])]

    results["gathered"] = cluster.all_gather(
        torch.tensor([rank * 10]), "control", "telling"
    ).tolist()

    # Rank r sends r rows to every rank but r + 1, to which it sends none.
    parts = [
        torch.full((0 if to == (rank + 1) % 4 else rank, 2), 10 * rank + to, dtype=torch.int64)
        for to in range(4)
    ]
    counts = [0 if rank == (source + 1) % 4 else source for source in range(4)]
    received = cluster.exchange(parts, counts, "partial", "exchanging")
    results["received"] = [part[:, 0].tolist() for part in received]
    results["bytes"] = cluster.traffic.take()

    # Arrays of sizes that only the sender knows: rank r sends rank t r + t numbers in one group,
    # and t in another.
    groups = [
        [np.full(size, 10 * rank + to, np.int32) for to, size in enumerate(sizes)]
        for sizes in (range(rank, rank + 4), range(4))
    ]
    arrived = exchange_arrays(cluster, groups, "topology", "telling")
    results["arrays"] = [[part.tolist() for part in group] for group in arrived]
    results["array type"] = arrived[0][0].dtype.name
    results["array bytes"] = cluster.traffic.take()
    assert exchange_arrays(cluster, [], "topology", "telling nothing") == []
    results["bytes of nothing"] = cluster.traffic.take()
    return results


def call_collectives_and_be_late() -> dict[str, Any]:
    """Join as one of four ranks and call every collective; rank 3 does not come to a last one."""
    cluster = Cluster.join(2, torch.device("cpu"), timeout=2, start_timeout=120)
    results = call_collectives(cluster)
    assert cluster.store is not None
    store, names = cluster.store.store, [f"named by {rank}" for rank in range(3)]
    if cluster.rank < 3:
        with pytest.raises(DeadlineExceeded) as raised:
            cluster.arrive("meeting late")
        results["late"] = str(raised.value)
        store.set(names[cluster.rank], "")
    # Without torchrun's agent rank 0 holds the store, which the others ask who is missing.
    if cluster.rank in (0, 3):
        store.wait(names, timedelta(seconds=60))
    torch.distributed.destroy_process_group()
    return results


@pytest.fixture(scope="module", params=["gloo", "threads at once", "threads in turns"])
def ranks(request, run_ranks) -> list[dict[str, Any]]:
    """What each of four ranks on two servers got, over every backend."""
    if request.param == "gloo":
        return list(run_ranks(call_collectives_and_be_late, 4))
    link = Link() if request.param == "threads in turns" else None
    return run_threads(4, 2, call_collectives, link, 60)


def test_collectives_give_every_rank_the_right_numbers(ranks):
    for rank, results in enumerate(ranks):
        assert results["server"] == rank // 2
        assert results["sum"] == [6.0]
        # The last 400 numbers were added up on each server alone.
        assert results["apart"] == [[6.0], [1.0] if rank < 2 else [5.0]]
        assert results["gathered"] == [[0], [10], [20], [30]]
        assert results["received"] == [
            [] if rank == (source + 1) % 4 else [10 * source + rank] * source for source in range(4)
        ]


def test_only_bytes_that_leave_the_server_are_counted(ranks):
    for rank, results in enumerate(ranks):
        # Ranks of a server add up, and ranks 0 and 2 tell each other: the numbers of all, and those
        # of which 400 were the server's alone.
        assert results["bytes"]["gradient"] == (4000 + 2400 if rank in (0, 2) else 0)
        # In the ring 0 -> 1 -> 2 -> 3 -> 0, ranks 1 and 3 send to the other server.
        leaves = rank in (1, 3)
        assert results["bytes"]["control"] == (3 * 8 if leaves else 0)
        away = [to for to in range(4) if to // 2 != rank // 2 and to != (rank + 1) % 4]
        assert results["bytes"]["partial"] == rank * 2 * 8 * len(away)


def test_arrays_are_exchanged_whose_sizes_the_sender_tells(ranks):
    for rank, results in enumerate(ranks):
        assert results["arrays"] == [
            [[10 * source + rank] * (source + rank) for source in range(4)],
            [[10 * source + rank] * rank for source in range(4)],
        ]
        assert results["array type"] == "int32"
        away = [to for to in range(4) if to // 2 != rank // 2]
        expected = {"topology": sum(4 * (rank + 2 * to) for to in away), "control": 2 * 2 * 4}
        assert {
            cause: count for cause, count in results["array bytes"].items() if count
        } == expected
        assert not any(results["bytes of nothing"].values())


def test_a_lone_rank_receives_its_own_arrays_and_sends_nothing():
    cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
    groups = [[np.array([3, 1])], [np.empty(0, np.int64)]]
    arrays = exchange_arrays(cluster, groups, "control", "telling")
    assert [[part.tolist() for part in group] for group in arrays] == [[[3, 1]], [[]]]
    assert not any(cluster.traffic.take().values())


@pytest.mark.parametrize("ranks", ["gloo"], indirect=True)
def test_a_rank_that_is_late_is_named(ranks):
    for rank in range(3):
        assert ranks[rank]["late"] == (
            f"rank {rank}, waiting for rank 3: meeting late did not finish within 2 s"
        )


class Work:
    """What has ended after some waits that passed their limit, and then raises if it failed."""

    def __init__(self, waits: int, *, failed: bool) -> None:
        self.waits, self.failed = waits, failed

    def is_completed(self) -> bool:
        return self.waits == 0

    def wait(self, limit: timedelta) -> None:
        if self.waits or self.failed:
            self.waits = max(0, self.waits - 1)
            raise RuntimeError("Operation timed out!")


@pytest.mark.parametrize("waits", [0, 1, 3])
def test_work_that_ends_just_after_a_short_wait_for_it_has_not_failed(waits):
    cluster: Any = Cluster(0, 2, 1, torch.device("cpu"), timeout=600.0)
    cluster.store = RankStore(HashStore(), 0, 2, "attempt")
    cluster.wait(Work(waits, failed=False), "adding")
    cluster.store.store.set("failed/1", "1")
    with pytest.raises(RankSilent, match=r"waiting for another rank: adding"):
        cluster.wait(Work(waits, failed=True), "adding")


def test_a_rank_names_the_first_whose_wait_failed():
    store = HashStore()
    clusters: list[Any] = [Cluster(rank, 2, 1, torch.device("cpu"), 600.0) for rank in range(2)]
    for rank, cluster in enumerate(clusters):
        cluster.store = RankStore(store, rank, 2, "attempt")
        cluster.store.store.set("failed/0", "1")
        cluster.store.store.set("failed/1", "1")
    with (
        pytest.raises(RankLost, match="lost another rank: Connection closed"),
        clusters[0].explain_failures("adding"),
    ):
        raise RuntimeError("Connection closed")
    first = "rank 1: taking: another rank's wait failed first: rank 0, adding: Connection closed"
    with pytest.raises(RankLost, match=first):
        clusters[1].wait(Work(1, failed=True), "taking")


def test_ranks_must_fill_servers():
    with pytest.raises(ConfigError, match=r"cluster.ranks_per_server: 2 does not divide the 3"):
        Cluster(0, 3, 2, torch.device("cpu"), 1.0)


def test_a_rank_needs_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto", local_ranks=2).type == "cpu"
    with pytest.raises(ConfigError, match="a GPU for each of the 2 ranks on this machine, found 1"):
        choose_device("cuda", local_ranks=2)


def test_ranks_may_share_gpus(monkeypatch):
    """They are dealt to the GPUs in turn."""
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for rank in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert choose_device("cuda", local_ranks=5, share_gpus=True).type == "cuda"
    assert taken == [0, 1, 0, 1, 0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto", local_ranks=5, share_gpus=True).type == "cpu"
    with pytest.raises(ConfigError, match="cuda needs a GPU on this machine, found 0"):
        choose_device("cuda", local_ranks=5, share_gpus=True)
