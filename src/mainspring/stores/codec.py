"""Records of runs, jobs, notes and attempts: one table of their fields, shared by every store.

A record is a dict of plain JSON values, so any database can keep it:

    record = run_to_record(run)     # {"id": "…", "state": "pending", "run_at": 1893456000000000, …}
    run = run_from_record(record)

- A time is a whole number of microseconds since 1970, in UTC. An enum is its text.
- Payloads, results, metadata and values of notes are the JSON text that `core/codec.py` makes.
- Progress, attempts, schedules, policies and webhooks are JSON text.
- A record leaves out what is None or empty. What a record lacks reads as the default of its class.

`run_from_record` and `job_from_record` never raise. A record that cannot be read (it is damaged, or
a newer version wrote it) gives a value with `unreadable` set and with every field that can be read.

A new field of `Run`, `Job`, `Note` or `Attempt` is added to its table here and nowhere else. (In
SQLite a migration must add its column, too.) `Webhook`, `Progress` and `Policy` need no table:
they are one JSON text, made from the fields of their class.

A store that keeps a field in another form changes its kind (`Table.adapted`) and makes its own
functions from the table (`record_reader`, `record_writer`, `row_reader`, `row_writer`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial, wraps
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from mainspring.core import codec, schedules
from mainspring.core.clock import EPOCH
from mainspring.core.model import (
    Attempt,
    Job,
    Note,
    Outcome,
    Owner,
    Progress,
    Run,
    Source,
    State,
    Webhook,
    replace,
)
from mainspring.core.policy import Policy
from mainspring.core.schedules import Schedule
from mainspring.errors import InvalidInput
from mainspring.stores.unreadable_records import log_unreadable

Record = dict[str, Any]
T = TypeVar("T")
V = TypeVar("V", Run, Job)

_DAY = 86_400_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")


# -- times, text and JSON -------------------------------------------------------------------


def to_us(moment: datetime) -> int:
    """As `clock.to_us`, at half its cost."""
    span = moment - EPOCH
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


def from_us(us: int) -> datetime:
    return EPOCH + timedelta(0, us // 1_000_000, us % 1_000_000)


def _encodable_text(text: str) -> str:
    """Error messages may hold lone surrogates (file names do), which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def json_text(value: Any) -> str:
    """JSON of values of the model. msgspec makes it, unless a text in it is not valid Unicode."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return _SURROGATE.sub(lambda found: rf"\\u{ord(found[0]):04x}", text)


LONGEST_CACHED = 4096
"""Characters of the longest text whose value is kept. The body of a webhook may have 256 KiB, and
each edit makes another text: 4,096 of them would take two gigabytes."""


def _cached(read: Callable[[str], T]) -> Callable[[str], T]:
    """Keeps the values of the last 4,096 short texts: many runs and lists read the same jobs."""
    kept = lru_cache(maxsize=4096)(read)

    @wraps(read)
    def read_or_cached(text: str) -> T:
        return (kept if len(text) <= LONGEST_CACHED else read)(text)

    return read_or_cached


@_cached
def read_schedule(text: str) -> Schedule:
    return schedules.from_dict(json.loads(text))


@_cached
def read_policy(text: str) -> Policy:
    return Policy.from_dict(json.loads(text))


_webhook = msgspec.json.Decoder(Webhook)


@_cached
def read_webhook(text: str) -> Webhook:
    return _webhook.decode(text)


def _definition_text(value: Policy | Schedule) -> str:
    return json.dumps(value.to_dict())


# -- kinds of values ------------------------------------------------------------------------


class Kind(Struct, frozen=True):
    """How records hold one kind of value. `write` and `read` are never called with None.

    `write` makes the value of the record (None: it is kept as it is). `read` checks what it is
    given, and raises if it is damaged; the field is then `damaged`. `fast_read` reads it in a whole
    record (None: it is kept as it is), and checks less: a wrong type in a text column changes
    nothing that a store decides.
    """

    name: str
    write: Callable[[Any], Any] | None
    read: Callable[[Any], Any]
    damaged: Any = None
    fast_read: Callable[[Any], Any] | None = None


def _of_type(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"{str(value)[:80]!r} is not of type {kind.__name__}")
        return value

    return read


as_number: Callable[[Any], int] = _of_type(int)


def as_decimal(value: Any) -> float:
    return float(value if isinstance(value, float) else as_number(value))


as_list: Callable[[Any], list[Any]] = _of_type(list)


def _enum(kind: type[StrEnum], damaged: StrEnum) -> Kind:
    members = {str(member): member for member in kind}
    return Kind(kind.__name__.lower(), str, kind, damaged, members.__getitem__)


def _value(what: str) -> Kind:
    def write(value: Any) -> str:
        return codec.encode(value, what=what)

    return Kind("value", write, codec.decode, None, codec.decode)


def _note_value() -> Kind:
    """A note whose value is damaged has the value None. It must not look absent, because an
    election or a limit may rest on it, and it must not fail the reads of other notes."""

    def read(text: Any) -> Any:
        try:
            return codec.decode(text)
        except Exception:  # a damaged value may raise anything
            return None

    return replace(_value("note"), read=read, fast_read=read)


def _write_mapping(value: Mapping[str, Any]) -> str:
    return codec.encode(dict(value), what="metadata")


TEXT = Kind("text", None, _of_type(str), "")
FREE_TEXT = Kind("free_text", _encodable_text, _of_type(str), "")
NUMBER = Kind("number", None, as_number, 0)
DECIMAL = Kind("decimal", None, as_decimal, 0.0)
FLAG = Kind("flag", None, lambda value: bool(as_number(value)), False)
TIME = Kind("time", to_us, lambda us: from_us(as_number(us)), EPOCH, from_us)


def _read_names(value: Any) -> tuple[Any, ...]:
    return tuple(as_list(value))


NAMES = Kind("names", list, _read_names, (), _read_names)
MAPPING = Kind("mapping", _write_mapping, codec.decode, {}, codec.decode)
SCHEDULE = Kind("schedule", _definition_text, read_schedule, None, read_schedule)
POLICY = Kind("policy", _definition_text, read_policy, Policy(), read_policy)
WEBHOOK = Kind("webhook", json_text, read_webhook, None, read_webhook)


def _struct(name: str, kind: Any, damaged: Any) -> Kind:
    read = msgspec.json.Decoder(kind).decode
    return Kind(name, json_text, read, damaged, read)


PROGRESS = _struct("progress", Progress, None)
ATTEMPTS = _struct("attempts", tuple[Attempt, ...], ())


# -- tables of fields -----------------------------------------------------------------------


class Field(Struct, frozen=True):
    """A stored field. `sparse`: a record leaves it out while it has its default (None, empty or
    False). `brief`: lists give it too. `indexed`: queries, claims or sweeps search by it, so a
    store that has indexes needs it in one."""

    name: str
    kind: Kind
    sparse: bool = False
    brief: bool = True
    indexed: bool = False
    default: Any = None

    @property
    def encoder(self) -> Callable[[Any], Any] | None:
        """What makes the record's value of any value, and None of None and of what is empty. There
        is none for a kind that records keep as it is."""
        write = self.kind.write
        if write is None or not self.sparse:
            return write
        if self.default is None:
            return lambda value: None if value is None else write(value)
        return lambda value: write(value) if value else None


class Table(Generic[T]):
    """The stored fields of a class, in order. `unstored`: what only a value in memory has."""

    def __init__(
        self, made: type[T], fields: Iterable[Field], unstored: frozenset[str] = frozenset()
    ) -> None:
        self.made = made
        self.unstored = unstored
        self.fields = {field.name: _with_default(made, field) for field in fields}

    def adapted(self, **changes: Mapping[str, Any]) -> Table[T]:
        """The same fields for a store that holds some kinds otherwise: `time={"write": …}`."""
        return Table(
            self.made,
            [
                replace(field, kind=replace(field.kind, **changes.get(field.kind.name, {})))
                for field in self.fields.values()
            ],
            self.unstored,
        )

    def field(self, name: str) -> Field:
        """The field of a change; `InvalidInput` if stores keep none of that name."""
        field = self.fields.get(name)
        if field is None:
            what = self.made.__name__.lower()
            raise InvalidInput(f"a {what} has no stored field {name!r}")
        return field

    @property
    def not_brief(self) -> frozenset[str]:
        return frozenset(field.name for field in self.fields.values() if not field.brief)

    def brief_copy(self, value: T) -> T:
        """The value as lists give it."""
        kept = {name: self.fields[name].default for name in self.not_brief}
        return replace(value, **kept, brief=True)  # type: ignore[type-var]


def _with_default(made: type, field: Field) -> Field:
    [known] = [known for known in msgspec.structs.fields(made) if known.name == field.name]
    if known.default_factory is not msgspec.NODEFAULT:
        return replace(field, default=known.default_factory())
    return field if known.default is msgspec.NODEFAULT else replace(field, default=known.default)


RUN: Table[Run] = Table(
    Run,
    [
        Field("id", TEXT, indexed=True),
        Field("job_id", TEXT, indexed=True),
        Field("handler", TEXT, indexed=True),
        Field("queue", TEXT, indexed=True),
        Field("priority", NUMBER, indexed=True),
        Field("source", _enum(Source, Source.ENQUEUE), indexed=True),
        # A run in an unknown state counts as unfinished, so what comes after it waits.
        Field("state", _enum(State, State.WAITING), indexed=True),
        Field("attempt", NUMBER, indexed=True),
        Field("failures", NUMBER, indexed=True),
        Field("lapses", NUMBER),
        Field("token", NUMBER),
        Field("cancel_requested", FLAG),
        Field("after_any", FLAG, sparse=True),
        Field("created_at", TIME, indexed=True),
        Field("scheduled_at", TIME),
        Field("run_at", TIME, indexed=True),
        Field("start_by", TIME, sparse=True),
        Field("started_at", TIME, sparse=True),
        Field("finished_at", TIME, sparse=True, indexed=True),
        Field("lease_until", TIME, sparse=True, indexed=True),
        Field("worker", FREE_TEXT, sparse=True),
        Field("error", FREE_TEXT, sparse=True),
        Field("reason", FREE_TEXT, sparse=True),
        Field("dedupe_key", TEXT, sparse=True, indexed=True),
        Field("dedupe_until", TIME, sparse=True),
        Field("began", FLAG, sparse=True),
        Field("payload", _value("payload"), sparse=True, brief=False),
        Field("result", _value("result"), sparse=True, brief=False),
        Field("progress", PROGRESS, sparse=True),
        Field("after", NAMES, sparse=True, indexed=True),
        Field("attempts", ATTEMPTS, sparse=True, brief=False),
    ],
    unstored=frozenset({"duplicate", "unreadable", "brief"}),
)

ATTEMPT: Table[Attempt] = Table(
    Attempt,
    [
        Field("number", NUMBER),
        Field("worker", TEXT),
        Field("started_at", TIME),
        Field("finished_at", TIME),
        Field("outcome", _enum(Outcome, Outcome.LOST)),
        Field("error", FREE_TEXT, sparse=True),
        Field("traceback", FREE_TEXT, sparse=True),
        Field("log", NAMES, sparse=True),
        Field("detail", _value("detail"), sparse=True),
        Field("cpu_seconds", DECIMAL, sparse=True),
        Field("peak_memory", NUMBER, sparse=True),
    ],
)
"""For stores that keep attempts in another form; a record holds all attempts as one JSON text."""

JOB: Table[Job] = Table(
    Job,
    [
        Field("id", TEXT, indexed=True),
        Field("version", NUMBER),
        Field("enabled", FLAG, indexed=True),
        Field("next_run_at", TIME, sparse=True, indexed=True),
        Field("last_run_at", TIME, sparse=True),
        Field("handler", TEXT),
        Field("created_at", TIME),
        Field("updated_at", TIME),
        Field("schedule", SCHEDULE, sparse=True),
        Field("policy", POLICY),
        Field("owner", _enum(Owner, Owner.API)),
        Field("description", FREE_TEXT),
        Field("tags", NAMES, sparse=True),
        Field("payload", _value("payload"), sparse=True),
        Field("metadata", MAPPING, sparse=True),
        Field("webhook", WEBHOOK, sparse=True),
        Field("origins", _value("origins"), sparse=True),
        Field("file", TEXT, sparse=True),
        Field("stated_enabled", FLAG, sparse=True),
    ],
    unstored=frozenset({"unreadable"}),
)

NOTE: Table[Note] = Table(
    Note,
    [
        Field("kind", TEXT, indexed=True),
        Field("name", TEXT, indexed=True),
        Field("version", NUMBER),
        Field("expires_at", TIME, sparse=True, indexed=True),
        Field("value", _note_value()),
    ],
)


# -- readers and writers --------------------------------------------------------------------
#
# Every claim, commit and list passes here. What a function needs of each field is looked up once,
# when the function is made.


def row_reader(table: Table[T], names: Sequence[str]) -> Callable[[Iterable[Any]], T]:
    """A function that makes a value of the raw values of these fields, in this order. What is no
    stored field is passed on as it is."""
    made = table.made
    steps = [
        (field.name, field.kind.fast_read or _unchanged, field.sparse)
        for field in map(table.fields.get, names)
        if field is not None
        and (field.kind.fast_read is not None or (field.sparse and field.default is not None))
    ]

    def read(row: Iterable[Any]) -> T:
        values = dict(zip(names, row, strict=True))
        for name, decode, sparse in steps:
            raw = values[name]
            if raw is None and sparse:
                del values[name]  # the class has a default
            else:
                values[name] = decode(raw)
        return made(**values)

    return read


def _unchanged(value: Any) -> Any:
    return value


def row_writer(
    table: Table[T], names: Sequence[str], absent: Mapping[str, Any] | None = None
) -> Callable[[T], list[Any]]:
    """A function that makes a list of the raw values of these fields. `absent` are the raw values
    of fields that are None or empty (else None)."""
    absent = absent or {}
    get = attrgetter(*names)
    steps = [
        (at, field.kind.write, field.sparse, field.default is None, absent.get(field.name))
        for at, field in enumerate(map(table.fields.__getitem__, names))
        if field.kind.write is not None
    ]

    def write(value: T) -> list[Any]:
        row = list(get(value))
        for at, encode, sparse, only_none, otherwise in steps:
            raw = row[at]
            if sparse and (raw is None if only_none else not raw):
                row[at] = otherwise
            else:
                row[at] = encode(raw)
        return row

    return write


def record_reader(
    table: Table[T],
    keys: Mapping[str, str] | None = None,
    leave_out: Iterable[str] = (),
    *,
    checked: bool = False,
) -> Callable[..., T]:
    """A function that makes a value of a record, and of the fields to leave out, which its caller
    gives by name. `keys` are the keys of fields that the record has under other names. `checked`:
    check every field."""
    made, keys, left_out = table.made, keys or {}, frozenset(leave_out)
    steps = [
        (
            field.name,
            keys.get(field.name, field.name),
            field.kind.read if checked else field.kind.fast_read,
            field.sparse,
        )
        for field in table.fields.values()
        if field.name not in left_out
    ]

    def read(record: Record, **values: Any) -> T:
        for name, key, decode, sparse in steps:
            raw = record.get(key) if sparse else record[key]
            if raw is not None or not sparse:
                values[name] = raw if decode is None else decode(raw)
        return made(**values)

    return read


def record_writer(table: Table[T], leave_out: Iterable[str] = ()) -> Callable[[T], Record]:
    """A function that makes a record, without the fields to leave out."""
    left_out = frozenset(leave_out)
    fields = [field for field in table.fields.values() if field.name not in left_out]
    get = attrgetter(*(field.name for field in fields))
    steps = [
        (field.name, field.kind.write, field.sparse, field.default is None) for field in fields
    ]

    def write(value: T) -> Record:
        record = {}
        for (name, encode, sparse, only_none), raw in zip(steps, get(value), strict=True):
            if not (sparse and (raw is None if only_none else not raw)):
                record[name] = raw if encode is None else encode(raw)
        return record

    return write


# -- records that cannot be read ------------------------------------------------------------


class _Absent:
    """A part that is not there, or cannot be read: the class has a default for it."""


_ABSENT = _Absent()


def read_parts(
    table: Table[V],
    raw: Callable[[str], Any],
    record_id: str,
    checks: Mapping[str, Callable[[], Any]] | None = None,
    otherwise: str | None = None,
) -> V:
    """Read a record field by field, after reading it as a whole has failed.

    `raw` gives a field's raw value, or raises. `checks` are named parts that no field holds.
    If any part cannot be read, the value has `unreadable` set and is logged, once in a process.
    `otherwise` is why it counts as unreadable even if every part can be read.
    """
    problems: list[str] = []

    def part(name: str, read: Callable[[], T]) -> T | _Absent:
        try:
            return read()
        except Exception as error:  # a damaged part may raise anything
            problems.append(f"{name}: {str(error)[:200] or type(error).__name__}")
            return _ABSENT

    def read_field(field: Field) -> Any:
        found = raw(field.name)
        return _ABSENT if found is None and field.sparse else field.kind.read(found)

    for name, check in (checks or {}).items():
        part(name, check)
    values: dict[str, Any] = {}
    for name, field in table.fields.items():
        value = part(name, partial(read_field, field))
        if value is not _ABSENT:
            values[name] = value
        elif not field.sparse:
            values[name] = record_id if name == "id" else field.kind.damaged
    made = table.made(**values)
    problem = "; ".join(problems) or otherwise
    if problem is None:
        return made
    made = replace(made, unreadable=problem)
    log_unreadable(made)
    return made


# -- records --------------------------------------------------------------------------------


run_to_record: Callable[[Run], Record] = record_writer(RUN)
job_to_record: Callable[[Job], Record] = record_writer(JOB)
note_to_record: Callable[[Note], Record] = record_writer(NOTE)
note_from_record: Callable[[Record], Note] = record_reader(NOTE, checked=True)
_read_run = record_reader(RUN, checked=True)
_read_job = record_reader(JOB, checked=True)


def run_from_record(record: Record, *, brief: bool = False) -> Run:
    """The run; with `unreadable` set, and with what can be read of it, where that is not all.
    `brief`: as lists give it. Its payload, result and attempts are not even read."""
    if not brief:
        return _from_record(RUN, _read_run, record)
    short = {name: value for name, value in record.items() if name not in RUN.not_brief}
    return replace(_from_record(RUN, _read_run, short), brief=True)


def job_from_record(record: Record) -> Job:
    """The job; with `unreadable` set, and with what can be read of it, where that is not all."""
    return _from_record(JOB, _read_job, record)


def _from_record(table: Table[V], read: Callable[[Record], V], record: Record) -> V:
    try:
        return read(record)
    except Exception:  # a damaged record may raise anything
        record_id = str(record.get("id"))
        return read_parts(table, record.get, record_id, otherwise="it cannot be read as a whole")


def update_record(table: Table[Any], record: Record, fields: Mapping[str, Any]) -> Record:
    """The record with new values of some fields, such as a change sets. Every other field stays as
    it is, also one that cannot be read."""
    made = dict(record)
    for name, value in fields.items():
        encode = table.field(name).encoder
        raw = value if encode is None else encode(value)
        if raw is None:
            made.pop(name, None)
        else:
            made[name] = raw
    return made
