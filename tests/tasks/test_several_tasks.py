"""Several tasks of one model: a weighted sum of losses, the metrics of each, tables with tasks."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from hopper.config import make_config
from hopper.engines.training_parts import make_objective
from hopper.errors import GraphError
from hopper.graph import GraphDirectory, Labels
from hopper.graph.describe import describe
from hopper.graph.importers import import_graph
from hopper.graph.layout import label_names_file
from tests.engines.features import TASKS
from tests.engines.graphs import NODES, make_tasks

pytestmark = pytest.mark.filterwarnings("ignore:split drawn", "ignore:labels of")


def test_the_loss_is_the_weighted_sum(tmp_path):
    """A root adds nothing to the loss of a task that it has no label of. Every task has scores."""
    graph = make_tasks(tmp_path / "graph")
    config = make_config({"data": {"partitioned": "parts"}, "task": TASKS})
    tasks = {"topic": Labels("class", 4), "value": Labels("float", 2)}
    tasks["keywords"] = Labels("multi_hot", 3)
    assert graph.schema.target_labels == Labels("tasks", 9, tuple(tasks.items()))
    objective = make_objective(config, graph.schema)
    assert (objective.metric, objective.higher_is_better) == ("topic.macro_f1", True)
    stored = torch.from_numpy(np.array(graph.labels("node")))
    assert stored.shape == (NODES, 6)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(NODES, 9, dtype=torch.float64, generator=generator, requires_grad=True)
    loss = objective.loss_sum(logits, objective.shape_labels(stored))
    topic, known = stored[:, 0].long(), stored[:, 1:3].isfinite().all(1)
    assert 0 < int(known.sum()) < NODES
    assert int((topic < 0).sum()) > 0
    expected = (
        functional.cross_entropy(logits[:, :4], topic, ignore_index=-1, reduction="sum")
        + 0.25 * (logits[:, 4:6] - stored[:, 1:3].double())[known].square().sum()
        + functional.binary_cross_entropy_with_logits(
            logits[:, 6:], stored[:, 3:].double(), reduction="sum"
        )
    )
    assert torch.allclose(loss, expected, rtol=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    logits = logits.detach()
    halves = [objective.metric_sums(logits[i], stored[i]) for i in (slice(70), slice(70, None))]
    scores = objective.scores(halves[0] + halves[1])
    assert list(scores) == ["topic.macro_f1", "topic.accuracy", "value.rmse", "keywords.micro_f1"]
    right = (logits[:, :4].argmax(1) == topic)[topic >= 0].double().mean()
    assert scores["topic.accuracy"] == pytest.approx(float(right))
    error = (logits[:, 4:6] - stored[:, 1:3])[known].square().mean().sqrt()
    assert scores["value.rmse"] == pytest.approx(float(error))
    assert not objective.needs_all_roots
    ranking = {"task": {"metrics": {"keywords": ["roc_auc"]}}}
    ranked = make_config({"data": {"partitioned": "parts"}, **ranking})
    assert make_objective(ranked, graph.schema).needs_all_roots
    # A task may select the best model.
    selecting = make_config({"data": {"partitioned": "parts"}, "task": {"selects": "value"}})
    assert make_objective(selecting, graph.schema).metric == "value.rmse"
    description = describe(graph)["labels"]["node"]
    assert description["tasks"]["topic"]["classes"] == 4
    assert description["tasks"]["value"]["labelled"] < description["labelled"] == NODES
    assert list(description["tasks"]) == [*tasks]


def test_imported_tables_have_tasks(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "nodes.csv").write_text(
        "id,age,label.topic,value.cited,label.tags_0,label.tags_1\n"
        "a,1,maths,2.5,0,1\nb,2,,,1,1\nc,3,art,1,0,0\n"
    )
    (folder / "edges.csv").write_text("src,dst\na,b\nb,c\n")
    import_graph("csv", str(folder), tmp_path / "imported")
    imported = GraphDirectory.open(tmp_path / "imported")
    assert dict(imported.schema.labels["node"].tasks) == {
        "topic": Labels("class", 2),
        "cited": Labels("float", 1),
        "tags": Labels("multi_hot", 2),
    }
    expected = [[1, 2.5, 0, 1], [-1, np.nan, 1, 1], [0, 1, 0, 0]]
    np.testing.assert_array_equal(imported.labels("node"), np.array(expected, np.float32))
    names = label_names_file(imported.path, "node", "topic")
    assert names.read_text().split() == ["art", "maths"]
    assert [column.name for column in imported.schema.node_types["node"].columns] == ["age"]
    (folder / "nodes.csv").write_text("id,label,label.topic\na,1,2\n")
    with pytest.raises(GraphError, match=r"expected labels of tasks .* or of none"):
        import_graph("csv", str(folder), tmp_path / "refused")
