"""Handlers with annotated arguments. A child process imports them by the name of this module."""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
import pydantic

from mainspring import RunContext

if TYPE_CHECKING:
    from collections import OrderedDict  # a name that is not there when the program runs


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


class User(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    born: date | None = None


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: UUID
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    color: Color = Color.RED


def take(
    order: Order | None = None,
    user: User | None = None,
    users: list[User] | None = None,
    color: Color = Color.RED,
    point: Point | None = None,
    when: datetime | None = None,
    span: timedelta | None = None,
    tags: set[str] | None = None,
    pair: tuple[int, str] | None = None,
    path: Path | None = None,
    mode: Literal["fast", "slow"] = "fast",
    small: Annotated[int, msgspec.Meta(le=10)] = 1,
    text: str = "",
) -> str:
    return repr({name: value for name, value in locals().items() if value not in (None, "")})


def take_with_context(ctx: RunContext, order: Order) -> list[str]:
    return [type(order).__name__, type(ctx.payload["order"]).__name__]


def loose(first, second: OrderedDict[str, int], third: Any = None) -> list[str]:  # type: ignore[no-untyped-def]
    return [type(one).__name__ for one in (first, second, third)]


class Named(Protocol):
    name: str


def take_unknown_types(
    numbers: Iterable[int] = (),
    queue: deque[int] | None = None,
    path: os.PathLike[str] | None = None,
    named: Named | None = None,
    nested: list[Iterable[int]] | None = None,
    required: Iterable[int] | None = None,
) -> list[Any]:
    return [numbers, queue, path, named, nested, required]


class Plan(enum.Enum):
    """msgspec has no enums of numbers with a fraction."""

    FREE = 0.0
    PRO = 9.9


def take_plan(plan: Plan) -> str:
    return plan.name


def needs_two(first: int, second: dict[str, int], color: Color | None = None) -> None:
    """It is called with both, or not at all."""
