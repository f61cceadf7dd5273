"""Values as JSON text: each comes back as it was, or is refused."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from mainspring.core.codec import MAX_BYTES, decode, encode, untag
from mainspring.errors import InvalidPayload
from tests.support.payloads import values


def types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    return [types(item) for item in value] if isinstance(value, list) else type(value)


@given(values)
def test_every_value_is_plain_json_in_ascii_and_comes_back_as_it_was(value: Any) -> None:
    text = encode(value)
    assert text.isascii()
    for back in (decode(text), untag(json.loads(text))):
        assert back == value
        assert types(back) == types(value)
        assert encode(back) == text


@pytest.mark.parametrize(
    "wrong", [{"$date": "x"}, {"$bytes": 1}, {"$uuid": None}, {"$decimal": "x"}, {"$datetime": {}}]
)
def test_a_tag_with_a_text_that_it_cannot_have_is_refused(wrong: Any) -> None:
    (tag,) = wrong
    with pytest.raises(ValueError, match=f"is not a {tag[1:]}"):
        untag([wrong])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        (date(2030, 1, 2), '{"$date":"2030-01-02"}'),
        (datetime(2030, 1, 2, tzinfo=UTC), '{"$datetime":"2030-01-02T00:00:00+00:00"}'),
        (UUID(int=7), '{"$uuid":"00000000-0000-0000-0000-000000000007"}'),
        (Decimal("1.50"), '{"$decimal":"1.50"}'),
        (b"\x00\xff", '{"$bytes":"AP8="}'),
        ({"$date": "x"}, '{"$$date":"x"}'),
        ({"$date": "x", "b": 1}, '{"$date":"x","b":1}'),
    ],
)
def test_encoded_text_of_special_values(value: Any, text: str) -> None:
    """Stored data outlives a version: these texts must go on being read."""
    assert encode(value) == text
    assert decode(text) == value


def test_values_that_come_back_as_another_type() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Level(IntEnum):
        LOW = 1

    assert decode(encode((1, (2,)))) == [1, [2]]
    assert decode(encode(bytearray(b"x"))) == b"x"
    assert decode(encode({Colour.RED: Level.LOW})) == {"red": 1}


def test_null_decodes_to_none() -> None:
    assert decode(None) is None
    assert decode(encode(None)) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "it holds an object. Allowed are text, numbers"),
        ({1, 2}, "it holds a set"),
        ([time(1)], "it holds a time"),
        ({"a": [timedelta(1)]}, "it holds a timedelta"),
        (1j, "it holds a complex"),
        ({1: "a"}, "the key 1 is int, not text"),
        ({None: "a"}, "the key None is NoneType, not text"),
        ({"a": {True: 1}}, "the key True is bool, not text"),
        (math.nan, "not JSON"),
        ([math.inf], "not JSON"),
        (10**5000, "not JSON"),
    ],
    ids=range(11),
)
def test_what_is_not_json_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidPayload, match=message) as caught:
        encode(value, what="result")
    assert str(caught.value).startswith("the result is not JSON")


def test_depth_and_cycles_are_bounded() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert decode(encode(deep)) == deep
    with pytest.raises(InvalidPayload, match="nested more than 100 deep"):
        encode([deep])
    objects: dict[str, Any] = {}
    for _ in range(100):
        objects = {"a": objects}
    assert decode(encode(objects)) == objects
    with pytest.raises(InvalidPayload, match="nested more than 100 deep"):
        encode({"a": objects})
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidPayload, match="nested"):
        encode(cycle)


def test_size_is_bounded_by_bytes_as_kept() -> None:
    fits = "x" * (MAX_BYTES - 2)
    assert decode(encode(fits)) == fits
    with pytest.raises(InvalidPayload, match=r"the payload is 262,145 bytes of JSON; at most 262,"):
        encode(fits + "x")
    with pytest.raises(InvalidPayload, match="pass a reference"):
        encode("é" * (MAX_BYTES // 5))
    with pytest.raises(InvalidPayload, match="at most 3"):
        encode("abc", limit=3)
