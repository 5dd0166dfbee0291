"""The contenders of an A/B: engines with options.

A contender is written ``ENGINE[:KEY=VALUE]...``, as in ``hop:merge=off:pregather=false``. A key
without a section belongs to the section with the engine's name. In a checkout of the repository an
engine may also be one of its baselines, by its short name. ``partitioned=DIR`` names another
division of the same graph, for an engine that needs one. Tables and results label a contender with
the same text, with only the last name of DIR.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hopper.config import Config, make_config
from hopper.config.engines import BASELINES
from hopper.engines import ENGINE_CLASSES, find_engine
from hopper.engines.trial_configs import is_trials
from hopper.errors import RequestError
from hopper.features import open_graph
from hopper.partition import PartitionedGraph

_CHECKOUT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Contender:
    """One side of a comparison: its label, its engine, and words to add to ``hopper train CONFIG``.

    Its methods take the configuration that all contenders share.
    """

    label: str
    engine: str
    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``ENGINE[:KEY=VALUE]...``."""
        engine, *options = text.split(":")
        if engine not in ENGINE_CLASSES and options and "=" not in options[0]:
            # The engine is a user-defined class: "package.module:Class".
            engine = f"{engine}:{options.pop(0)}"
        words = [f"--train.engine={_find_baseline(engine) if engine in BASELINES else engine}"]
        label = [engine]
        for option in options:
            key, equals, value = option.partition("=")
            if not equals or not key:
                raise RequestError(
                    f"--engines: {text}: expected ENGINE[:KEY=VALUE]..., got option {option!r}"
                )
            if key == "partitioned":
                words.append(f"--data.partitioned={Path(value).absolute()}")
                label.append(f"{key}={Path(value).name}")
            else:
                words.append(f"--{key if '.' in key else f'{engine}.{key}'}={value}")
                label.append(option)
        return cls(":".join(label), engine, tuple(words))

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.label.replace(":", "-").replace("=", "-").replace("/", "-")

    def configure(self, config: Config) -> Config:
        """Return the configuration that it runs with."""
        configured = make_config(config.given(), self.words, where=f"--engines: {self.label}")
        if is_trials(configured):
            raise RequestError(
                f'--engines: {self.label}: hop.replicas = "independent" trains different models, '
                "which no other engine does"
            )
        return configured

    def exact(self, config: Config) -> bool:
        """Return whether its gradient equals that of all other exact engines."""
        configured = self.configure(config)
        return not find_engine(configured).kind.spec.approximations(configured)

    def rounds(self, config: Config) -> bool:
        """Return whether it rounds on purpose, so that its gradient is only near that of exact
        engines."""
        configured = self.configure(config)
        spec = find_engine(configured).kind.spec
        return any(reason != spec.biased for reason in spec.approximations(configured))

    def graph(self, config: Config) -> PartitionedGraph:
        """Open the division of the graph that it uses."""
        return open_graph(self.configure(config))

    def options(self, config: Config) -> dict[str, Any]:
        """Return the configuration section with the engine's name; empty if there is none."""
        section = getattr(self.configure(config), self.engine, None)
        return {} if section is None else section.model_dump()


def _find_baseline(name: str) -> str:
    """Return a baseline's class as "package.module:Class", and let ranks import it too.

    Raises
    ------
    RequestError: this is not a checkout.
    """
    if not (_CHECKOUT / "benchmarks" / "baselines").is_dir():
        raise RequestError(
            f"--engines: {name} is a baseline, which only a checkout of Hopper's repository has"
        )
    path = os.environ.get("PYTHONPATH", "")
    if str(_CHECKOUT) not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, str(_CHECKOUT))))
    if str(_CHECKOUT) not in sys.path:
        sys.path.append(str(_CHECKOUT))
    return BASELINES[name]


def parse_contenders(texts: Sequence[str]) -> tuple[Contender, ...]:
    """Read the contenders of a comparison."""
    if len(set(texts)) != len(texts) or not texts:
        raise RequestError(f"--engines: expected distinct names, given {','.join(texts)!r}")
    contenders = tuple(Contender.parse(text) for text in texts)
    labels = [contender.label for contender in contenders]
    if len(set(labels)) != len(labels):
        raise RequestError(
            f"--engines: expected folders with different last names too, found {labels}"
        )
    if any(contender.engine == "auto" for contender in contenders):
        raise RequestError('--engines: name the engines; "auto" is none')
    return contenders
