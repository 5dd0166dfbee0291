"""Classes named "package.module:Class" are found and checked, and errors take one line."""

from __future__ import annotations

import importlib
import re
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import pytest
from pydantic import Field

from hopper.config.plug_ins import find_missing_members, find_plug_in
from hopper.errors import ConfigError


class Shape(Protocol):
    sides: ClassVar[int]

    def area(self, scale: float) -> float: ...

    def name(self) -> str: ...


class Square:
    sides = 4

    def __init__(self, *, unit: str, width: Annotated[float, Field(gt=0)] = 1.0) -> None:
        if width > 100:
            raise ValueError("too wide")
        self.unit, self.width = unit, width

    def area(self, scale: float, rounded: bool = False) -> float:
        return self.width**2 * scale

    @staticmethod
    def name() -> str:
        return "square"


class Base(ABC):
    @abstractmethod
    def area(self) -> float: ...

    def name(self) -> str:
        return "base"


SHAPES_MODULE = """
from pathlib import Path

class Ring:
    sides = 0
    def __init__(self, *, unit, radii: tuple[int, int], near: Path | None = None, odd: "Odd" = 0):
        self.unit, self.radii, self.near, self.odd = unit, radii, near, odd
    def area(self, scale): return 3.0
    def name(self): return "ring"

class Rings:
    class Small(Ring):
        pass

class Plain:
    def __init__(self, *, unit, width: "tuple[int, int]" = (1, 2), kinds: set[str] = frozenset()):
        self.width, self.kinds = width, kinds
    sides = 1
    def area(self, scale): return 0.0
    def name(self): return ""

class NoName:
    sides = 1
    def area(self, scale): ...

class OtherArea(Ring):
    def area(self): ...

class Kept(Ring):
    def __init__(self, radius: int): ...

class Any_:
    sides = 2
    def __init__(self, **options): self.options = options
    def area(self, scale): return 1.0
    def name(self): return "any"

def function(): ...
"""


@pytest.fixture
def own_shapes(tmp_path, monkeypatch) -> str:
    (tmp_path / "own_shapes.py").write_text(SHAPES_MODULE)
    (tmp_path / "broken_shapes.py").write_text("import no_such_package_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_shapes"
    sys.modules.pop("own_shapes", None)


def make_shape(name: str, **options: Any) -> Any:
    plug_in = find_plug_in("draw.shape", name, Shape, {"square": Square}, options, ["unit"])
    return plug_in.make(unit="m")


def test_built_in_classes_and_plug_ins_are_made_alike(own_shapes):
    square = make_shape("square", width=3)
    assert (square.unit, square.area(2.0)) == ("m", 18.0)
    ring = make_shape("own_shapes:Plain", width=[3, 4], kinds=["a", "b"])
    assert (ring.width, ring.kinds) == ((3, 4), {"a", "b"})
    assert make_shape("own_shapes:Any_", whatever=1).options == {"unit": "m", "whatever": 1}


def test_unreadable_annotations_are_ignored(own_shapes):
    for name in ("own_shapes:Ring", "own_shapes:Rings.Small"):
        assert make_shape(name, radii=[1, 2], odd="x").odd == "x"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("circle", {}, "draw.shape: expected square or package.module:Class; got 'circle'"),
        ("broken_shapes:Ring", {},
         "draw.shape: broken_shapes:Ring: module 'broken_shapes' cannot be imported "
         "(ModuleNotFoundError: No module named 'no_such_package_at_all')"),
        ("own_shapes:Rung", {}, "draw.shape: own_shapes:Rung: module 'own_shapes' has no 'Rung'"),
        ("own_shapes:function", {},
         "draw.shape: own_shapes:function: expected a class; given <function function at "),
        ("own_shapes:NoName", {},
         "draw.shape: own_shapes:NoName: expected a Shape (docs/howto/plug-ins.md); the class "
         "lacks name()"),
        ("own_shapes:OtherArea", {}, "the class lacks area(scale)"),
        ("own_shapes:Kept", {"radius": 1},
         "draw.shape_options: own_shapes:Kept: expected a constructor with the parameters unit; "
         "it lacks unit"),
        ("square", {"hue": 1}, "draw.shape_options.hue: square takes width; got 'hue'"),
        ("square", {"unit": "km"}, "draw.shape_options.unit: square takes width; got 'unit'"),
        ("square", {"width": "3"}, "draw.shape_options.width: Input should be a valid number"),
        ("square", {"width": 0}, "draw.shape_options.width: Input should be greater than 0, got 0"),
        ("square", {"width": 101.0}, "draw.shape: square cannot be made (ValueError: too wide)"),
        ("own_shapes:Ring", {}, "draw.shape_options.radii: missing; own_shapes:Ring needs it"),
        ("own_shapes:Plain", {"width": [1]}, "draw.shape_options.width.1: Field required, got [1]"),
    ],
)  # fmt: skip
def test_errors_of_plug_ins_take_one_line(own_shapes, name, options, message):
    with pytest.raises(ConfigError) as raised:
        make_shape(name, **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_members_that_are_only_declared_count_as_missing():
    class Heir(Shape):
        sides = 3

        def area(self, scale: float) -> float:
            return 0.0

    class Half(Base):
        pass

    class Whole:
        sides: ClassVar[int] = 3
        name = area = classmethod(lambda _cls, _scale=0: "")

    assert find_missing_members(Heir, Shape) == ["name()"]
    assert find_missing_members(Half, Base) == ["area()"]
    assert find_missing_members(type("Own", (), {"area": lambda self: 0}), Base) == ["name()"]
    assert find_missing_members(Square, Shape) == []
    assert find_missing_members(Whole, Shape) == []


PAGE = Path(__file__).parents[1] / "docs" / "howto" / "plug-ins.md"
ROWS = re.findall(
    r"^\| [\w -]+ \| `.*\| `([\w.]+)` \| \[(\w+)\]\(\.\./\.\./(examples/(\w+)\.py)\) \| (\d+) \|$",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_page_has_an_example_of_each_kind():
    assert len(ROWS) == 13


@pytest.mark.parametrize(("protocol", "example", "file", "module", "lines"), ROWS)
def test_examples_fit_their_rows_on_the_page(protocol, example, file, module, lines):
    home, _, name = protocol.rpartition(".")
    kind = getattr(importlib.import_module(module), example)
    base = getattr(importlib.import_module(home), name)
    assert base in kind.__mro__ or find_missing_members(kind, base) == []
    assert len((PAGE.parents[2] / file).read_text(encoding="utf-8").splitlines()) == int(lines)
