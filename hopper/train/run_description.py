"""What a run's models are made from, in its folder: the configuration and the graph's schema.

With both, a trained model can be loaded on a machine that has no part of the graph.
"""

from __future__ import annotations

import json
from pathlib import Path

from hopper.config import Config
from hopper.graph.layout import SCHEMA_FILE
from hopper.graph.schema import GraphSchema
from hopper.graph.schema_json import read_schema, schema_to_json
from hopper.train.run_files import CONFIG_FILE
from hopper.whole_files import write_text


def describe_run(config: Config, schema: GraphSchema) -> None:
    """Write the configuration and the schema into ``train.run_dir``."""
    run_dir = Path(config.train.run_dir)
    partitioned = str(Path(config.data.partitioned).absolute())
    data = config.data.model_copy(update={"partitioned": partitioned})
    described = config.model_copy(update={"data": data})
    write_text(run_dir / CONFIG_FILE, described.model_dump_json(indent=1))
    write_text(run_dir / SCHEMA_FILE, json.dumps(schema_to_json(schema), indent=1))


def read_run_schema(run_dir: Path, config: Config) -> GraphSchema:
    """The schema that a run's models are made from.

    A run of an earlier version has none in its folder. It is then read from the partitioned graph.

    Raises
    ------
    GraphError: there is no schema, or it is not readable.
    """
    described = (run_dir / SCHEMA_FILE).is_file()
    return read_schema(run_dir if described else Path(config.data.partitioned))
