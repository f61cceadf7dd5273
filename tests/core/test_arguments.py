"""Arguments become JSON and come back as what their annotations say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pytest

from mainspring.core import codec
from mainspring.core.arguments import ArgumentMismatch, ArgumentTypes


class Mixed(Enum):
    """msgspec knows no enums of strings and numbers."""

    ONE = 1
    TWO = "two"


class Plain(msgspec.Struct):
    kind: Mixed
    size: int = 1


class Renamed(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    the_kind: Mixed


class Listed(msgspec.Struct, array_like=True):
    kind: Mixed
    size: int = 1


class Cat(msgspec.Struct, tag=True):
    kind: Mixed


class Dog(msgspec.Struct, tag="dog"):
    kind: Mixed


class Row(msgspec.Struct, tag="row", array_like=True):
    kind: Mixed


class Nested(msgspec.Struct):
    plain: Plain
    cats: list[Cat] = []


@dataclass
class Holder:
    plain: Plain


def take(
    plain: Plain,
    renamed: Renamed,
    listed: Listed,
    pet: Cat | Dog,
    row: Row,
    nested: Nested,
    holder: Holder,
) -> None: ...


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plain", Plain(Mixed.TWO)),
        ("plain", Plain(Mixed.ONE, 7)),
        ("renamed", Renamed(Mixed.ONE)),
        ("listed", Listed(Mixed.TWO, 3)),
        ("pet", Cat(Mixed.ONE)),
        ("pet", Dog(Mixed.TWO)),
        ("row", Row(Mixed.TWO)),
        ("nested", Nested(Plain(Mixed.ONE), [Cat(Mixed.TWO)])),
        ("holder", Holder(Plain(Mixed.TWO))),
    ],
)
def test_a_struct_with_an_enum_of_mixed_values_comes_back(name: str, value: Any) -> None:
    types = ArgumentTypes(take)
    stored = codec.decode(codec.encode(types.encode({name: value})))
    types.check(stored)
    assert types.decode(stored) == {name: value}


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ({"plain": {"kind": "three"}}, "plain.kind: invalid enum value 'three'"),
        ({"plain": {"size": 2}}, "plain: object missing required field kind"),
        ({"plain": {"kind": 1, "size": "x"}}, "plain.size: expected int, got str"),
        ({"renamed": {"theKind": 1, "more": 2}}, "renamed: object contains unknown field more"),
        ({"row": ["column", 1]}, "row.type: invalid value 'column'"),
        ({"nested": {"plain": {"kind": 3}}}, "nested.plain.kind: invalid enum value 3"),
    ],
)
def test_a_struct_that_does_not_fit_is_refused_with_the_place(stored: Any, why: str) -> None:
    with pytest.raises(ArgumentMismatch) as refused:
        ArgumentTypes(take).check(stored)
    assert str(refused.value).replace("`", "").startswith(why)
