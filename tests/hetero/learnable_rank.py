"""One rank that learns rows of two tables, one of them frozen; not a test by itself.

Four ranks on two servers read what :data:`READS` says, and one rank on one server reads all of it.
"""

from typing import Any

import numpy as np
import torch

from hopper.cluster.cluster import Cluster
from hopper.hetero.learnable import LearnableRows, LearnableTable, Learning, TableShare
from hopper.hetero.row_storage import MemoryStorage
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement

DIM = 3
OFFSETS = {1: {"user": [0, 6], "item": [0, 10]}, 2: {"user": [0, 5, 6], "item": [0, 4, 10]}}
# By rank and name of a type in subgraphs, what is read.
READS: list[dict[str, list[int]]] = [
    {"item": [3, 4, 9], "item below user": [4, 0], "user": [5, 0]},
    {"item": [4], "paper": [2]},
    {"item": [], "item below user": [9, 4, 1], "user": [1, 2, 5]},
    {},
]


def learn_rows(servers: int) -> dict[str, Any]:
    cluster = Cluster.join(2 if servers == 2 else 1, torch.device("cpu"), 60, 120)
    learning = Learning(DIM, torch.float64, 7, "adam", 0.1)
    offsets = OFFSETS[servers]
    placement = Placement(PartitionBook(servers, offsets), cluster.ranks_per_server)
    storage, names = MemoryStorage(cluster.device), {"item": ("item", "item below user")}
    tables = [
        LearnableTable(
            name, name, np.array(table_offsets), names.get(name, (name,)), frozen=name == "user"
        )
        for name, table_offsets in offsets.items()
    ]
    learnable = LearnableRows(
        cluster,
        [
            TableShare(table, learning, np.arange(10)[::-1].copy(), placement, cluster, storage)
            for table in tables
        ],
    )
    assert [share.name for share in learnable] == ["item", "user"]
    own_reads = READS if cluster.world == 1 else [READS[cluster.rank]]
    ids_by_table: dict[str, list[np.ndarray]] = {}
    for reads in own_reads:
        for name, ids in reads.items():
            ids_by_table.setdefault(name, []).append(np.array(ids, np.int64))
    result: dict[str, Any] = {"remote": count_remote(ids_by_table, offsets, cluster.server)}
    cluster.traffic.take()
    for step in range(2):
        fetched = learnable.fetch(learnable.ask(ids_by_table, f"step {step}"), f"step {step}")
        for name, groups in ids_by_table.items():
            for ids in groups:
                if name != "paper":
                    rows = fetched.of(name, ids)
                    assert rows.requires_grad == (name != "user")
                    if rows.requires_grad:
                        (rows.square().sum() * 1024).backward()
        fetched.push(1024.0)
        if step == 0:
            result["bytes"] = cluster.traffic.take()
        assert fetched.is_finite()
        result["squares"] = fetched.squares("adding up")
        collected = fetched.collect()
        fetched.step(0.5)
    result["collected"] = {key: rows.tolist() for key, rows in collected.items()}
    result["ids"] = {share.name: share.owned_ids().tolist() for share in learnable}
    result["rows"] = {share.name: share.records.rows.tolist() for share in learnable}
    all_ids = {"item": [np.arange(10)], "user": [np.arange(6)]}
    read = learnable.read(all_ids, "reading all")
    result["read"] = {name: read.of(name, ids).tolist() for name, (ids,) in all_ids.items()}
    cluster.leave()
    return result


def count_remote(
    ids_by_table: dict[str, list[np.ndarray]], offsets: dict[str, list[int]], server: int
) -> dict[str, int]:
    """Count, for each table, the distinct rows of the other server that are asked for."""
    ids: dict[str, set[int]] = {"item": set(), "user": set()}
    for name, groups in ids_by_table.items():
        ids.get(name.split()[0], set()).update(*(group.tolist() for group in groups))
    return {
        name: sum((id_ >= offsets[name][1]) != server for id_ in table_ids)
        for name, table_ids in ids.items()
    }
