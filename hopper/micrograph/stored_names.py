"""Names of relations and node types in a model, and the names under which they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopper.graph.schema import Relation


@dataclass(frozen=True)
class StoredNames:
    """The stored names of relations and node types that a model knows under other names.

    Attributes
    ----------
    relations: by name, the stored relation, whose draws are used.
    types: by name, the stored node type, whose rows are used. A name that is in neither is stored
        under that name.
    """

    relations: Mapping[Relation, Relation] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    def relation(self, name: Relation) -> Relation:
        """Return the stored relation of a name."""
        return self.relations.get(name, name)

    def node_type(self, name: str) -> str:
        """Return the stored node type of a name."""
        return self.types.get(name, name)
