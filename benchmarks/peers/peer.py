"""What another system has to offer to be trained beside Hopper's engines."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from hopper.bench.guest import Guest
from hopper.config import Config
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph

ENVIRONMENTS: Final = Path(__file__).with_name("environments")
"""written by make_environment.sh"""


class Peer(Protocol):
    """A system to compare Hopper with."""

    @property
    def name(self) -> str:
        """Of the command line, such as "distdgl"; its runs' label too."""

    @property
    def role(self) -> str:
        """What tables call it, with its version."""

    @property
    def note(self) -> str:
        """How it was tuned, and what differs; a sentence or more."""

    def why_not(self, config: Config) -> str | None:
        """Return why it cannot train a configuration here, as the end of a sentence; None where it
        can."""

    def join(
        self, config: Config, graph: GraphDirectory, parts: PartitionedGraph, work: Path
    ) -> Guest:
        """Divide the graph for the system, every node on the server where Hopper has it. Return
        what trains the configuration.

        Parameters
        ----------
        work: a folder for what is kept between runs.

        Raises
        ------
        ClusterError: it cannot divide the graph; quotes its last words.
        """


def environment_of(name: str) -> Path:
    """Return the path of the interpreter of a system's environment, whether it exists or not."""
    return ENVIRONMENTS / name / "bin" / "python"
