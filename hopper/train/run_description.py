"""The description of a run's models in its folder: the configuration and the graph's schema.

With both, a trained model can be loaded on a machine that has no part of the graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hopper.config import Config
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.graph.columns import find_class_difference, find_column_difference
from hopper.graph.json_file import read_json
from hopper.graph.layout import SCHEMA_FILE
from hopper.graph.schema import GraphSchema
from hopper.graph.schema_json import read_schema, schema_to_json
from hopper.partition import PartitionedGraph
from hopper.train.run_files import CONFIG_FILE
from hopper.whole_files import write_text

_LABEL_NAMES: Final = "label_names.json"


def describe_run(config: Config, graph: PartitionedGraph) -> None:
    """Write the configuration, the schema and the names of classes into ``train.run_dir``."""
    run_dir, schema = Path(config.train.run_dir), graph.schema
    partitioned = str(Path(config.data.partitioned).absolute())
    data = config.data.model_copy(update={"partitioned": partitioned})
    described = config.model_copy(update={"data": data})
    write_text(run_dir / CONFIG_FILE, described.model_dump_json(indent=1))
    write_text(run_dir / SCHEMA_FILE, json.dumps(schema_to_json(schema), indent=1))
    write_text(run_dir / _LABEL_NAMES, json.dumps(graph.class_names(), indent=1))


def read_label_names(run_dir: Path) -> dict[str, list[str]] | None:
    """Read the names of classes in the graph that a run was trained on.

    Returns
    -------
    By task, "" if there is only one; None if the run's version of Hopper did not write them.

    Raises
    ------
    GraphError: the file is not readable.
    """
    file = run_dir / _LABEL_NAMES
    if not file.is_file():
        return None
    names: dict[str, list[str]] = read_json(file, "no such file")
    return names


def check_encodings(
    trained: GraphSchema,
    classes: Mapping[str, Sequence[str]] | None,
    request: Request,
    like: str,
) -> None:
    """Refuse a graph whose features or classes were encoded otherwise than those of a run.

    Only features that the model reads are compared.

    Parameters
    ----------
    trained, classes: the run's schema and names of classes; None = not known.
    like: the graph of the run, for the error.

    Raises
    ------
    RequestError: names node type or relation, column, and both values.
    """
    graph = request.graph
    difference = find_column_difference(trained.columns, request.columns)
    if not difference and classes is not None:
        difference = find_class_difference(classes, graph.class_names())
    if difference:
        raise RequestError(
            f"{graph.path}: {difference}; import the new data with --encode-like {like}"
        )


def read_run_schema(run_dir: Path, config: Config) -> GraphSchema:
    """Read the schema that a run's models are made from.

    A run of an earlier version has no schema in its folder. Its partitioned graph has one.

    Raises
    ------
    GraphError: there is no schema, or it is not readable.
    """
    described = (run_dir / SCHEMA_FILE).is_file()
    return read_schema(run_dir if described else Path(config.data.partitioned))
