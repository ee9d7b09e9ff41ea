"""The registry of classes by name."""

from __future__ import annotations

import pytest

from credo._arguments import check_positive
from credo._registry import Registry
from credo.errors import InputError, LoadError

shapes: Registry[object] = Registry("shape")


@shapes.register
class Circle:
    def __init__(self, radius: float | None = 1.0) -> None:
        self.radius = None if radius is None else check_positive(radius, "radius")

    def get_config(self) -> dict[str, object] | None:
        return None if self.radius is None else {"radius": self.radius}


class Disk(Circle):
    pass


def test_describe_and_build_are_inverse() -> None:
    config = shapes.describe(Circle(2.0))
    assert config == {"name": "Circle", "radius": 2.0}
    assert vars(shapes.build(config)) == {"radius": 2.0}


def test_it_is_a_mapping() -> None:
    assert dict(shapes) == {"Circle": Circle}
    assert len(shapes) == 1
    assert shapes.get("Square") is None


def test_what_cannot_be_described_is_none() -> None:
    assert shapes.describe(Disk()) is None
    assert shapes.describe(Circle(None)) is None
    assert shapes.name_of(3) is None


def test_a_name_can_differ_from_the_class() -> None:
    registry: Registry[object] = Registry("shape")
    assert registry.register(Disk, name="disk") is Disk
    assert registry.name_of(Disk()) == "disk"
    assert isinstance(registry.build({"name": "disk"}), Disk)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "must be a mapping with a 'name'"),
        ({"radius": 1.0}, "must be a mapping with a 'name'"),
        ({"name": "Circel"}, "unknown shape 'Circel': did you mean 'Circle'"),
        ({"name": 3}, "unknown shape"),
        ({"name": "Circle", "width": 1.0}, "unexpected keyword argument 'width'"),
        ({"name": "Circle", "radius": -1.0}, "radius must be a positive number"),
    ],
)
def test_bad_configurations_raise(config: object, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        shapes.build(config)


def test_the_error_class_can_be_chosen() -> None:
    with pytest.raises(InputError, match="unknown shape 'Circle'"):
        Registry("shape", error=InputError).lookup("Circle")
