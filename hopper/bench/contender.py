"""What an A/B compares: an engine, perhaps with options of its own.

Written ``ENGINE[:KEY=VALUE]...``, as in ``hop:merge=off:pregather=false``; a key without a section
is one of the section that has the engine's name. ``partitioned=DIR`` names another division of the
same graph, for an engine that needs one. The text, with the last name of DIR, is also the label in
tables and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopper.config import Config, make_config
from hopper.engines import ENGINE_CLASSES, find_engine
from hopper.engines.trial_configs import is_trials
from hopper.errors import RequestError
from hopper.features import open_graph
from hopper.partition import PartitionedGraph


@dataclass(frozen=True)
class Contender:
    """One side of a comparison.

    Attributes
    ----------
    label: as it was written, folders by their last name.
    engine: name of the engine.
    words: what to add to ``hopper train CONFIG``.
    """

    label: str
    engine: str
    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``ENGINE[:KEY=VALUE]...``.

        Raises
        ------
        RequestError: an option is not KEY=VALUE.
        """
        engine, *options = text.split(":")
        if engine not in ENGINE_CLASSES and options and "=" not in options[0]:
            # A class of one's own: "package.module:Class".
            engine = f"{engine}:{options.pop(0)}"
        words = [f"--train.engine={engine}"]
        shown = [engine]
        for option in options:
            key, equals, value = option.partition("=")
            if not equals or not key:
                raise RequestError(
                    f"--engines: {text}: expected ENGINE[:KEY=VALUE]..., got option {option!r}"
                )
            if key == "partitioned":
                words.append(f"--data.partitioned={Path(value).absolute()}")
                shown.append(f"{key}={Path(value).name}")
            else:
                words.append(f"--{key if '.' in key else f'{engine}.{key}'}={value}")
                shown.append(option)
        return cls(":".join(shown), engine, tuple(words))

    def exact(self, config: Config) -> bool:
        """Whether its gradient is that of every other exact engine."""
        own = self.configure(config)
        return bool(find_engine(own).kind.is_exact(own))

    def rounds(self, config: Config) -> bool:
        """Whether its gradient is near that of the exact engines on purpose, not equal to it."""
        own = self.configure(config)
        return bool(find_engine(own).kind.rounds(own))

    @property
    def folder(self) -> str:
        """A name for its files."""
        return self.label.replace(":", "-").replace("=", "-").replace("/", "-")

    def configure(self, config: Config) -> Config:
        """The configuration that it runs with.

        Raises
        ------
        ConfigError, RequestError: names the key at fault.
        """
        found = make_config(config.model_dump(), self.words, where=f"--engines: {self.label}")
        if is_trials(found):
            raise RequestError(
                f'--engines: {self.label}: hop.replicas = "independent" trains different models, '
                "which no other engine does; compare sweeps with benchmarks/sweep.py"
            )
        return found

    def graph(self, config: Config) -> PartitionedGraph:
        """The graph, divided as it needs it.

        Raises
        ------
        GraphError: it cannot be opened.
        """
        return open_graph(self.configure(config))

    def options(self, config: Config) -> dict[str, Any]:
        """The options that its engine alone reads: the section of its name, if it has one."""
        section = getattr(self.configure(config), self.engine, None)
        return section.model_dump() if section is not None else {}


def parse_contenders(texts: Sequence[str]) -> tuple[Contender, ...]:
    """Read what is to be compared.

    Raises
    ------
    RequestError: none is named, one twice, or one is no engine.
    """
    if len(set(texts)) != len(texts) or not texts:
        raise RequestError(f"--engines: expected distinct names, given {','.join(texts)!r}")
    contenders = tuple(Contender.parse(text) for text in texts)
    labels = [contender.label for contender in contenders]
    if len(set(labels)) != len(labels):
        raise RequestError(
            f"--engines: expected folders with different last names too, found {labels}"
        )
    for contender in contenders:
        if contender.engine == "auto":
            raise RequestError('--engines: name the engines; "auto" is none')
    return contenders
