"""Values as documents in JSON's types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import Struct

from mainspring.core.documents import to_document
from mainspring.core.model import State

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@dataclass
class Part:
    ended_at: datetime | None
    states: tuple[State, ...]


class Whole(Struct):
    first_part: Part
    more: list[Part]


def test_fields_at_every_depth_are_named_and_times_written_as_the_caller_wants() -> None:
    value = Whole(Part(NOON, (State.FAILED,)), [Part(None, ())])
    document = to_document({"whole": value}, time=datetime.isoformat, name=str.upper)
    assert document == {
        "WHOLE": {
            "FIRST_PART": {"ENDED_AT": "2027-03-01T12:00:00+00:00", "STATES": ["failed"]},
            "MORE": [{"ENDED_AT": None, "STATES": []}],
        }
    }
    assert type(document["WHOLE"]["FIRST_PART"]["STATES"][0]) is str
