"""Print what a model says of words: the topic of each of their meanings, beside WordNet's own.

python examples/wordnet/look_up.py runs/wordnet bank mercury python
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import hopper


def main(folder: Path, words: set[str]) -> None:
    """Print a line for each noun with one of the words that the model was not trained on."""
    predictions = hopper.Predictions.open(folder / "labels")
    is_new = np.isin(predictions.ids, hopper.GraphDirectory.open(folder / "graph").split("test"))
    classes = np.array(predictions.label_names)[predictions.values[is_new]]
    topics = dict(zip(predictions.names[is_new].tolist(), classes.tolist(), strict=True))
    table = Table("words", "definition", "predicted", "WordNet's topic")
    for synset in pq.read_table(Path(__file__).with_name("synsets.parquet")).to_pylist():
        if synset["id"] in topics and words & set(synset["words"].split(", ")):
            table.add_row(
                synset["words"], synset["definition"], topics[synset["id"]], synset["topic"]
            )
    Console().print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]))
