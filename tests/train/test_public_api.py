"""The public API is ``__all__``, and training from Python is the run of the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hopper
import hopper.train

SCRIPT = """
import json, sys
import hopper

values = json.loads(open(sys.argv[1]).read())
result = hopper.train(values)
print(json.dumps({"run_dir": str(result.run_dir), "summary": result.summary}))
"""


def test_the_public_names_exist() -> None:
    assert sorted(hopper.__all__) == [
        "GraphDirectory",
        "PartitionedGraph",
        "divide_graph",
        "load_config",
        "make_config",
        "train",
    ]
    for name in hopper.__all__:
        assert getattr(hopper, name).__doc__, name


def test_train_is_a_package_and_a_function() -> None:
    assert callable(hopper.train)
    assert hopper.train.train.__module__ == "hopper.train.launch"
    assert hopper.train.__all__ == ["RunResult", "train"]


def test_training_from_python_is_the_same_run(reference: Any, runs: Any, tmp_path: Path) -> None:
    """Same seed twice: the losses are equal bit for bit."""
    config = runs.config("from-python")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = runs.start([sys.executable, str(script), str(config)], "from-python")
    assert run.finish() == 0, run.stdout + run.stderr
    run.assert_nothing_remains()
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["run_dir"] == str(run.run_dir)
    assert result["summary"] == run.summary()
    assert run.losses() == reference.losses()
