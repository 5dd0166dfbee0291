"""What a run held in memory and asked for, read from its spans.

A rank asks other servers for rows in every ``gather`` span of an iteration without pre-gathering,
and once, in the span that says so, in one with it; where it reads its own rows alone the span says
that. What is done with learnable rows has spans of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

SPANS_FOLDER: Final = "spans"
_LEARNABLE: Final = {"gather": "read", "sync": "send", "compute": "update"}
"""by stage, what it does with learnable rows in an iteration; they are asked for ahead of it, with
the plan"""


def read_held_rows(run_dir: Path) -> dict[str, Any]:
    """Read all ranks' spans of a run.

    Returns
    -------
    largest_pass_rows: rows of the largest input of a forward pass, local ones included.
    gathers: times that ranks turned to other servers for features, over all ranks and iterations
    (each asks every server whose rows it needs).
    learnable: seconds of a rank and iteration, after the first epoch, by what is done with
    learnable rows ("read", "send" gradients, "update").
    None each where there are no spans.
    """
    largest = gathers = 0
    learnable, moments = dict.fromkeys(_LEARNABLE.values(), 0.0), set()
    files = sorted((run_dir / SPANS_FOLDER).glob("rank-*.jsonl"))
    for file in files:
        counts: dict[tuple[int, int], tuple[int, int]] = {}
        for line in file.read_text().splitlines():
            span: dict[str, Any] = json.loads(line)
            if span.get("epoch", 0) > 0 and "iteration" in span:
                moments.add((file.name, span["epoch"], span["iteration"]))
                if span.get("operation") == "learnable rows" and span["span"] in _LEARNABLE:
                    learnable[_LEARNABLE[span["span"]]] += span["seconds"]
            if span.get("span") != "gather" or "iteration" not in span:
                continue
            if span.get("operation") == "learnable rows":
                continue
            moment = (span["epoch"], span["iteration"])
            ahead, passes = counts.get(moment, (0, 0))
            if span.get("operation") == "pregather":
                ahead += 1
            else:
                passes += span.get("operation") != "own rows"
                largest = max(largest, int(span.get("rows", 0)))
            counts[moment] = (ahead, passes)
        gathers += sum(ahead or passes for ahead, passes in counts.values())
    if not files:
        return {"largest_pass_rows": None, "gathers": None, "learnable": None}
    by_turn = {name: seconds / max(1, len(moments)) for name, seconds in learnable.items()}
    return {"largest_pass_rows": largest, "gathers": gathers, "learnable": by_turn}
