"""Ranks links as PyKEEN does, in PyKEEN's environment: python pykeen_ranking.py FILE.npz BATCH.

The file is that of :mod:`benchmarks.link_ranking`. Prints JSON: seconds, memory, MRR.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import ERModel
from pykeen.nn.init import PretrainedInitializer
from pykeen.triples import CoreTriplesFactory


def main(file, batch):
    arrays = {name: torch.from_numpy(array) for name, array in np.load(file).items()}
    rows, relations = arrays["rows"], arrays["relations"]
    triples = CoreTriplesFactory(arrays["train"], len(rows), len(relations))

    def fixed(table):
        return {"shape": table.shape[1:], "initializer": PretrainedInitializer(table)}

    model = ERModel(
        triples_factory=triples,
        interaction="distmult",
        entity_representations_kwargs=fixed(rows),
        relation_representations_kwargs=fixed(relations),
        random_seed=1,
    )
    evaluator = RankBasedEvaluator(filtered=True)
    known = [arrays["train"], arrays["val"]]

    def evaluate(links, batch):
        return evaluator.evaluate(
            model,
            links,
            batch_size=batch,
            additional_filter_triples=known,
            use_tqdm=False,
        )

    evaluate(arrays["test"][:batch], batch)  # warms up
    held = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    begun = time.perf_counter()
    found = evaluate(arrays["test"], batch)
    seconds = time.perf_counter() - begun
    mrr = found.get_metric("both.realistic.inverse_harmonic_mean_rank")
    print(json.dumps({"seconds": seconds, "MiB": memory("VmHWM") - held, "MRR": mrr}))


def memory(key):
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
