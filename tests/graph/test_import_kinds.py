"""One small graph in every kind of source becomes the same graph directory."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import networkx
import numpy as np
import pandas
import pytest
import torch
import yaml

from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph, write_tables
from hopper.graph.importers.graphml import tables_from_networkx
from hopper.graph.importers.ogb import tables_from_ogb
from hopper.graph.layout import TOPOLOGY_ARRAYS
from tests.graph.conftest import write_frames

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # notes on the import

N, E = 60, 240
DRAW = np.random.default_rng(5)
ENDS = DRAW.integers(0, N, (2, E))
LABELS = DRAW.integers(0, 3, N)
X = DRAW.normal(size=(N, 3)).astype(np.float32)
AMOUNT = DRAW.normal(size=(E, 1)).astype(np.float32)
WEIGHTS = DRAW.integers(1, 9, E).astype(np.float32) / 4
TIMES = DRAW.integers(0, 99, E)
SPLITS = {"train": np.arange(0, 30), "val": np.arange(30, 40), "test": np.arange(40, 60)}

Importer = Callable[[Path, ImportOptions], None]


def frames() -> dict[str, pandas.DataFrame]:
    names = np.repeat(list(SPLITS), [len(ids) for ids in SPLITS.values()])
    columns = {f"x{number}": X[:, number] for number in range(3)}
    nodes = pandas.DataFrame({"id": range(N), "label": LABELS, "split": names, **columns})
    edges = {"src": ENDS[0], "dst": ENDS[1], "weight": WEIGHTS, "time": TIMES}
    return {"nodes": nodes, "edges": pandas.DataFrame({**edges, "amount": AMOUNT[:, 0]})}


def import_csv(folder: Path, options: ImportOptions) -> None:
    import_graph("csv", write_frames(folder, "csv", frames()), folder / "out", options)


def import_parquet(folder: Path, options: ImportOptions) -> None:
    import_graph("parquet", write_frames(folder, "parquet", frames()), folder / "out", options)


def import_sql(folder: Path, options: ImportOptions) -> None:
    """Files in any order, sorted by the query."""
    text = 'nodes.node = """{}"""\nedges.\'node/edge/node\' = """{}"""'
    queries = []
    for name, frame in frames().items():
        frame = frame.assign(row=range(len(frame))).sample(frac=1, random_state=1)
        for part in range(2):
            (folder / name / f"part={part}").mkdir(parents=True, exist_ok=True)
            frame[part::2].to_parquet(folder / name / f"part={part}/rows.parquet", index=False)
        queries.append(f"SELECT * EXCLUDE (row, part) FROM '{name}/*/*.parquet' ORDER BY row;")
    (folder / "graph.toml").write_text(text.format(*queries))
    import_graph("sql", str(folder / "graph.toml"), folder / "out", options)


def from_frames(folder: Path, options: ImportOptions) -> None:
    nodes, edges = {"node": "FROM nodes"}, {"node/edge/node": "FROM edges"}
    GraphDirectory.from_sql(folder / "out", nodes, edges, tables=frames(), options=options)


def from_database(folder: Path, url: str, options: ImportOptions) -> None:
    queries = [{"database": "shop", "sql": f"SELECT * FROM {name}"} for name in ("nodes", "edges")]
    of_graph = {"node": queries[0]}, {"node/edge/node": queries[1]}
    GraphDirectory.from_sql(folder / "out", *of_graph, databases={"shop": url}, options=options)


def from_sqlite(folder: Path, options: ImportOptions) -> None:
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        for name, frame in frames().items():
            frame.to_sql(name, connection, index=False, if_exists="replace")
    from_database(folder, f"sqlite:{folder}/shop.sqlite", options)


def from_duckdb(folder: Path, options: ImportOptions) -> None:
    with duckdb.connect(folder / "shop.duckdb") as connection:
        for name, frame in frames().items():
            connection.register("frame", frame)
            connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM frame")
    queries = {"node": "FROM shop.nodes"}, {"node/edge/node": "FROM shop.edges"}
    databases = {"shop": f"duckdb:{folder}/shop.duckdb"}
    GraphDirectory.from_sql(folder / "out", *queries, databases=databases, options=options)


def import_npy(folder: Path, options: ImportOptions) -> None:
    arrays = {"edges": ENDS, "x": X, "y": LABELS, "w": WEIGHTS, "t": TIMES, **SPLITS}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    edge_type = {"src": "node", "rel": "edge", "dst": "node", "file": "edges.npy"}
    meta = {
        "node_types": {"node": {"count": N, "feat_file": "x.npy"}},
        "edge_types": [edge_type | {"weight_file": "w.npy", "time_file": "t.npy"}],
        "target_type": "node",
        "labels": {"node": "y.npy"},
        "splits": {name: {"file": f"{name}.npy"} for name in SPLITS},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    import_graph("npy", str(folder), folder / "out", options)


def import_graphbolt(folder: Path, options: ImportOptions) -> None:
    (folder / "data").mkdir(exist_ok=True)
    np.savetxt(folder / "data/edges.csv", ENDS.T, "%d", ",")
    np.save(folder / "data/x.npy", X[:, :2])
    torch.save(torch.from_numpy(X[:, 2]), folder / "data/last.pt")
    np.save(folder / "data/amount.npy", AMOUNT)
    columns = [("node", "x", "numpy", "data/x.npy"), ("node", "last", "torch", "data/last.pt")]
    columns.append(("edge", "amount", "numpy", "data/amount.npy"))
    keys = "domain", "name", "format", "path"
    sets = {"train": "train_set", "val": "validation_set", "test": "test_set"}
    tasks: dict[str, Any] = {"name": "topic", "num_classes": 3}
    for name, ids in SPLITS.items():
        np.save(folder / f"data/{name}.npy", ids)
        np.save(folder / f"data/{name}-labels.npy", LABELS[ids])
        files = {"seeds": f"data/{name}.npy", "labels": f"data/{name}-labels.npy"}
        data = [{"name": key, "format": "numpy", "path": path} for key, path in files.items()]
        tasks[sets[name]] = [{"data": data}]
    metadata = {
        "dataset_name": "graph",
        "graph": {"nodes": [{"num": N}], "edges": [{"format": "csv", "path": "data/edges.csv"}]},
        "feature_data": [dict(zip(keys, of, strict=True)) | {"in_memory": True} for of in columns],
        "tasks": [tasks],
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata))
    import_graph("graphbolt", str(folder), folder / "out", options)


def masks() -> dict[str, torch.Tensor]:
    is_in = {name: torch.from_numpy(np.isin(np.arange(N), ids)) for name, ids in SPLITS.items()}
    return {f"{name}_mask": mask for name, mask in is_in.items()}


def import_pyg(folder: Path, options: ImportOptions) -> None:
    nodes = {"x": torch.from_numpy(X), "y": torch.from_numpy(LABELS), **masks()}
    edges = {"edge_weight": torch.from_numpy(WEIGHTS), "edge_time": torch.from_numpy(TIMES)}
    edges |= {"edge_index": torch.from_numpy(ENDS), "edge_attr": torch.from_numpy(AMOUNT)}
    torch.save(nodes | edges, folder / "graph.pt")
    import_graph("pyg", str(folder / "graph.pt"), folder / "out", options)


def import_dgl(folder: Path, options: ImportOptions) -> None:
    dgl = pytest.importorskip("dgl", reason="DGL is not installed", exc_type=ImportError)
    graph = dgl.heterograph(
        {("node", "edge", "node"): tuple(torch.from_numpy(ENDS))}, num_nodes_dict={"node": N}
    )
    graph.ndata.update({"feat": torch.from_numpy(X), "label": torch.from_numpy(LABELS), **masks()})
    graph.edata.update({"weight": torch.from_numpy(WEIGHTS), "time": torch.from_numpy(TIMES)})
    graph.edata["feat"] = torch.from_numpy(AMOUNT)
    dgl.save_graphs(str(folder / "graph.bin"), [graph])
    import_graph("dgl", str(folder / "graph.bin"), folder / "out", options)


def import_networkx(folder: Path, options: ImportOptions) -> None:
    graph = networkx.MultiDiGraph()
    name_of = {int(row): name for name, ids in SPLITS.items() for row in ids}
    for row in range(N):
        features = X[row].tolist()
        graph.add_node(row, label=int(LABELS[row]), split=name_of[row], features=features)
    for edge, (src, dst) in enumerate(ENDS.T.tolist()):
        data = {"weight": float(WEIGHTS[edge]), "time": int(TIMES[edge])}
        graph.add_edge(src, dst, amount=float(AMOUNT[edge, 0]), **data)
    tables = tables_from_networkx(graph, "graph", "graph")
    write_tables(tables, folder / "out", options)


def import_ogb(folder: Path, options: ImportOptions) -> None:
    graph = {"edge_index": ENDS, "edge_feat": AMOUNT, "node_feat": X, "num_nodes": N}
    splits = {{"val": "valid"}.get(name, name): ids for name, ids in SPLITS.items()}
    tables = tables_from_ogb("small", graph, LABELS[:, None], splits)
    write_tables(tables, folder / "out", options)


def import_chunks(folder: Path, options: ImportOptions) -> None:
    """Write DistDGL's Chunked Graph Format, with chunks of different sizes and formats."""
    folder.joinpath("data").mkdir(exist_ok=True)

    def write(name: str, values: np.ndarray, kind: str = "numpy") -> dict[str, Any]:
        files = []
        for number, chunk in enumerate(np.split(values, [7, 40])):
            files.append(f"data/{name}-{number}.{kind}")
            if kind == "csv":
                np.savetxt(folder / files[-1], chunk, "%d", " ")
            elif kind == "parquet":
                pandas.DataFrame(chunk.reshape(len(chunk), -1)).to_parquet(folder / files[-1])
            else:
                with (folder / files[-1]).open("wb") as stream:
                    np.save(stream, chunk)
        return {"format": {"name": kind, "delimiter": " "}, "data": files}

    masks = {f"{name}_mask": np.isin(np.arange(N), ids) for name, ids in SPLITS.items()}
    of_nodes = {name: write(name, mask) for name, mask in masks.items()}
    of_edges = {"weight": write("weight", WEIGHTS), "time": write("time", TIMES)}
    metadata = {
        "graph_name": "graph",
        "node_type": ["node"],
        "num_nodes_per_chunk": [[7, 33, N - 40]],
        "edge_type": ["node:edge:node"],
        "num_edges_per_type": [E],
        "edges": {"node:edge:node": write("edges", ENDS.T, "csv")},
        "node_data": {
            "node": {"feat": write("x", X), "label": write("y", LABELS, "parquet"), **of_nodes}
        },
        "edge_data": {"node:edge:node": {"feat": write("amount", AMOUNT, "parquet"), **of_edges}},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    import_graph("distdgl", str(folder / "metadata.json"), folder / "out", options)


def from_arrays(folder: Path, options: ImportOptions) -> None:
    columns = {"edge_features": AMOUNT, "edge_weights": WEIGHTS, "options": options}
    times: dict[Any, Any] = {("node", "edge", "node"): TIMES}
    splits = SPLITS | {"train": np.isin(np.arange(N), SPLITS["train"])}  # a mask
    GraphDirectory.from_arrays(folder / "out", ENDS, X, LABELS, splits, times=times, **columns)


KINDS: dict[str, Importer] = {
    "csv": import_csv,
    "parquet": import_parquet,
    "sql": import_sql,
    "frames": from_frames,
    "sqlite": from_sqlite,
    "duckdb": from_duckdb,
    "npy": import_npy,
    "graphbolt": import_graphbolt,
    "pyg": import_pyg,
    "dgl": import_dgl,
    "ogb": import_ogb,
    "distdgl": import_chunks,
    "networkx": import_networkx,
    "arrays": from_arrays,
}
LACKING = {"npy": {"edge_features"}, "ogb": {"weights", "times"}, "graphbolt": {"weights", "times"}}
"""What a kind cannot say."""


CHANGES = ImportOptions(
    symmetrize=True, scale="minmax", targets=("edge",), split=RandomSplit(0.5, 0.25)
)


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> GraphDirectory:
    """The graph of arrays, changed by options."""
    folder = tmp_path_factory.mktemp("arrays")
    from_arrays(folder, CHANGES)
    return GraphDirectory.open(folder / "out")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_becomes_the_same_graph(kind, changed, tmp_path):
    own_splits = ImportOptions(split=RandomSplit(1, 1))
    with pytest.raises(RequestError, match="--split: the source has its own splits"):
        KINDS[kind](tmp_path, own_splits)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "out"))]
    KINDS[kind](tmp_path, ImportOptions())
    graph, lacking = GraphDirectory.open(tmp_path / "out"), LACKING.get(kind, set())
    (relation,) = graph.schema.relations
    assert graph.schema.target == "node"
    np.testing.assert_array_equal(graph.features("node"), X)
    np.testing.assert_array_equal(graph.labels("node"), LABELS)
    for name, ids in SPLITS.items():
        np.testing.assert_array_equal(graph.split(name), ids)
    order = np.arange(E)
    if kind == "networkx":
        # The library keeps the edges of a source together, and those between two nodes.
        pairs = list(map(tuple, ENDS.T.tolist()))
        order = np.array(sorted(range(E), key=lambda e: (pairs[e][0], pairs.index(pairs[e]), e)))
    topology, degrees = graph.topology(relation), np.bincount(ENDS[1], minlength=N)
    np.testing.assert_array_equal(topology.indices, ENDS[0][order][topology.edge_ids])
    np.testing.assert_array_equal(np.diff(topology.indptr), degrees)
    if "edge_features" not in lacking:
        np.testing.assert_array_equal(graph.features(relation), AMOUNT[order])
    if "weights" not in lacking:
        np.testing.assert_array_equal(graph.edge_weights(relation), WEIGHTS[order])
        np.testing.assert_array_equal(graph.times(relation), TIMES[order])
    # Options change all kinds alike.
    (tmp_path / "changed").mkdir()
    KINDS[kind](tmp_path / "changed", CHANGES)
    graph = GraphDirectory.open(tmp_path / "changed/out")
    if kind in ("networkx", "npy", "ogb", "graphbolt"):
        # Their edges have another order or lack times, on which counterparts depend.
        assert graph.features("node").min() == 0
        assert sum(graph.schema.splits.values()) == graph.schema.target_count
        return
    np.testing.assert_array_equal(graph.features("node"), changed.features("node"))
    for name in SPLITS:
        np.testing.assert_array_equal(graph.split(name), changed.split(name))
    for name in TOPOLOGY_ARRAYS:
        arrays = [getattr(of.topology(relation), name) for of in (graph, changed)]
        np.testing.assert_array_equal(*arrays)
