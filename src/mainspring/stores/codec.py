"""Records of runs, jobs and notes: one table of their fields, shared by every store.

A record is a dict of plain JSON values, so any database can keep it:

    record = run_to_record(run)     # {"id": "…", "state": "pending", "run_at": 1893456000000000, …}
    run = run_from_record(record)

- A time is a whole number of microseconds since 1970, in UTC. An enum is its text.
- Payloads, results, metadata and values of notes are the JSON text that `core/codec.py` makes.
- Progress, attempts, schedules, policies and webhooks are JSON text.
- A record leaves out what is None or empty. What a record lacks reads as the default of its class.

`run_from_record` and `job_from_record` never raise. A record that cannot be read (it is damaged, or
a newer version wrote it) gives a value with `unreadable` set and with every field that can be read.
No worker starts such a run, and no store overwrites or deletes the record.

The type of a field decides how it is kept (`_kind_of`), so a new field of `Run`, `Job` or `Note`
needs nothing here. (In SQLite a migration must add its column.)

A store that keeps some kinds of values in another form adapts the table (`Table.adapted`) and makes
its own functions from it (`record_reader`, `record_writer`, `row_reader`, `row_writer`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial, wraps
from operator import attrgetter
from threading import Lock
from typing import Any, Generic, TypeVar, get_args

import msgspec
from msgspec import Struct

from mainspring.core import codec, schedules
from mainspring.core.clock import EPOCH
from mainspring.core.model import Attempt, Job, Note, Progress, Run, State, Webhook, replace
from mainspring.core.policy import Policy
from mainspring.core.schedules import Schedule
from mainspring.errors import InvalidInput

Record = dict[str, Any]
T = TypeVar("T")
V = TypeVar("V", Run, Job)

log = logging.getLogger("mainspring")

_DAY = 86_400_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")


# -- times, text and JSON -------------------------------------------------------------------


def to_us(moment: datetime) -> int:
    """As `clock.to_us`, at half its cost."""
    span = moment - EPOCH
    return span.days * _DAY + span.seconds * 1_000_000 + span.microseconds


def from_us(us: int) -> datetime:
    return EPOCH + timedelta(0, us // 1_000_000, us % 1_000_000)


def json_text(value: Any) -> str:
    """JSON of values of the model. msgspec makes it, unless a text in it is not valid Unicode."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return _SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):04x}", text)


def progress_text(progress: Progress | None) -> str | None:
    return None if progress is None else json_text(progress)


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


read_webhook = _cached(msgspec.json.Decoder(Webhook).decode)


# -- kinds of values ------------------------------------------------------------------------


class Kind(Struct, frozen=True):
    """How records hold one kind of value: `write` makes the value of the record, `read` makes the
    value of the field again, and raises if it is damaged. Neither is called with None. None: it is
    kept as it is, and msgspec checks its type when it is read."""

    name: str
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


def _definition_text(value: Policy | Schedule) -> str:
    return json.dumps(value.to_dict())


_KINDS = {
    str: Kind("text"),
    int: Kind("number"),
    bool: Kind("flag"),
    datetime: Kind("time", to_us, from_us),
    tuple[str, ...]: Kind("names", list),
    tuple[Attempt, ...]: Kind(
        "attempts", json_text, msgspec.json.Decoder(tuple[Attempt, ...]).decode
    ),
    Progress: Kind("progress", json_text, msgspec.json.Decoder(Progress).decode),
    Schedule: Kind("schedule", _definition_text, read_schedule),
    Policy: Kind("policy", _definition_text, read_policy),
    Webhook: Kind("webhook", json_text, read_webhook),
}
_FREE_TEXT = Kind("free_text", codec.encodable_text)
_ENUM = Kind("enum", str)


def _kind_of(field: msgspec.structs.FieldInfo) -> Kind:
    kinds = [kind for kind in get_args(field.type) if kind is not type(None)]
    optional = len(kinds) < len(get_args(field.type))
    type_ = kinds[0] if optional else field.type
    if type_ is str and (optional or field.name == "description"):
        return _FREE_TEXT
    if type_ in _KINDS:
        return _KINDS[type_]
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return _ENUM
    return Kind("value", partial(_value_text, field.name), codec.decode)


def _value_text(what: str, value: Any) -> str:
    return codec.encode(dict(value) if isinstance(value, Mapping) else value, what=what)


# -- tables of fields -----------------------------------------------------------------------


class Field(Struct, frozen=True):
    """A stored field. `type` is what msgspec checks; a kind with its own reader checks itself.
    `required`: every record has it."""

    name: str
    kind: Kind
    type: Any
    default: Any
    required: bool

    @property
    def reader(self) -> Callable[[Any], Any]:
        """What makes the value of the record's value; raises if it is damaged."""
        read, check = self.kind.read, partial(msgspec.convert, type=self.type)
        if read is None:
            return check
        return read if self.type is Any else lambda raw: check(read(raw))

    @property
    def encoder(self) -> Callable[[Any], Any] | None:
        """What makes the record's value of any value but None, and None of what is empty. There is
        none for a kind that records keep as it is."""
        write = self.kind.write
        if write is None or not isinstance(self.default, tuple | dict):
            return write
        return lambda value: write(value) if value else None


class Table(Generic[T]):
    """The stored fields of a class, in order. `unstored`: what only a value in memory has.
    `not_brief`: what lists leave out. `whole`: msgspec knows the types of all fields, so that it
    can make the value of all of them in one step."""

    def __init__(
        self,
        made: type[T],
        fields: Iterable[Field],
        not_brief: frozenset[str] = frozenset(),
        *,
        whole: bool = True,
    ) -> None:
        self.made = made
        self.fields = {field.name: field for field in fields}
        self.not_brief = not_brief
        self._whole = whole
        self._required = frozenset(name for name, field in self.fields.items() if field.required)
        self._steps: list[tuple[str, Callable[[Any], Any]]] = [
            (field.name, (whole and field.kind.read) or field.reader)
            for field in self.fields.values()
            if field.kind.read is not None or not whole
        ]

    @classmethod
    def of(
        cls, made: type[T], unstored: Iterable[str] = (), not_brief: Iterable[str] = (), **more: Any
    ) -> Table[T]:
        left_out = frozenset(unstored)
        infos = [i for i in msgspec.structs.fields(made) if i.name not in left_out]  # type: ignore[arg-type]
        return cls(made, map(_field_of, infos), frozenset(not_brief), **more)

    def adapted(self, **changes: Mapping[str, Any]) -> Table[T]:
        """The same fields for a store that holds some kinds otherwise: `time={"write": …}`."""
        fields = [
            replace(field, kind=replace(field.kind, **changes.get(field.kind.name, {})))
            for field in self.fields.values()
        ]
        return Table(self.made, fields, self.not_brief, whole=self._whole)

    def field(self, name: str) -> Field:
        """The field of a change; `InvalidInput` if stores keep none of that name."""
        field = self.fields.get(name)
        if field is None:
            what = self.made.__name__.lower()
            raise InvalidInput(f"a {what} has no stored field {name!r}")
        return field

    def brief_copy(self, value: T) -> T:
        """The value as lists give it."""
        kept = {name: self.fields[name].default for name in self.not_brief}
        return replace(value, **kept, brief=True)  # type: ignore[type-var]

    def read(self, raw: Record) -> T:
        """Make a value of the raw values of fields, which it changes. None of them is None. Raises
        if one is damaged or missing. Every claim and list passes here: 2 µs for a run."""
        if not self._required <= raw.keys():
            raise ValueError("a field is missing")
        for name, read in self._steps:
            if (value := raw.get(name)) is not None:
                raw[name] = read(value)
        return msgspec.convert(raw, self.made) if self._whole else self.made(**raw)


def _field_of(info: msgspec.structs.FieldInfo) -> Field:
    kind = _kind_of(info)
    default = None if info.default is msgspec.NODEFAULT else info.default
    if info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory()
    own_check = kind.read is not None
    required = info.required or not (default is None or isinstance(default, tuple | dict))
    return Field(info.name, kind, Any if own_check else info.type, default, required)


RUN: Table[Run] = Table.of(
    Run,
    unstored=("duplicate", "unreadable", "brief"),
    not_brief=("payload", "result", "attempts"),
)
JOB: Table[Job] = Table.of(Job, unstored=("unreadable",), whole=False)


def _note_value(text: Any) -> Any:
    """A note whose value is damaged has the value None. It must not look absent, because an
    election or a limit may rest on it, and it must not fail the reads of other notes."""
    try:
        return codec.decode(text)
    except Exception:  # a damaged value may raise anything
        return None


NOTE: Table[Note] = Table.of(Note).adapted(value={"read": _note_value})


# -- readers and writers --------------------------------------------------------------------


def row_reader(table: Table[T], names: Sequence[str]) -> Callable[[Iterable[Any]], T]:
    """A function that makes a value of the raw values of these fields, in this order."""

    def read(row: Iterable[Any]) -> T:
        pairs = zip(names, row, strict=True)
        return table.read({name: raw for name, raw in pairs if raw is not None})

    return read


def row_writer(table: Table[T], names: Sequence[str]) -> Callable[[T], list[Any]]:
    """A function that makes a list of the raw values of these fields. None: None or empty."""
    get = attrgetter(*names)
    encoders = [table.fields[name].encoder for name in names]
    steps = [(at, encode) for at, encode in enumerate(encoders) if encode is not None]

    def write(value: T) -> list[Any]:
        row = list(get(value))
        for at, encode in steps:
            if row[at] is not None:
                row[at] = encode(row[at])
        return row

    return write


def record_reader(
    table: Table[T], keys: Mapping[str, str] | None = None, leave_out: Iterable[str] = ()
) -> Callable[..., T]:
    """A function that makes a value of a record, and of the fields to leave out, which its caller
    gives by name. `keys` are the keys of fields that the record has under other names."""
    keys, left_out = keys or {}, frozenset(leave_out)
    steps = [(name, keys.get(name, name)) for name in table.fields if name not in left_out]

    def read(record: Record, **values: Any) -> T:
        for name, key in steps:
            if (raw := record.get(key)) is not None:
                values[name] = raw
        return table.read(values)

    return read


def record_writer(table: Table[T], leave_out: Iterable[str] = ()) -> Callable[[T], Record]:
    """A function that makes a record, without the fields to leave out."""
    left_out = frozenset(leave_out)
    names = [name for name in table.fields if name not in left_out]
    write_row = row_writer(table, names)

    def write(value: T) -> Record:
        pairs = zip(names, write_row(value), strict=True)
        return {name: raw for name, raw in pairs if raw is not None}

    return write


def update_record(table: Table[Any], record: Record, fields: Mapping[str, Any]) -> Record:
    """The record with new values of some fields, such as a change sets. Every other field stays as
    it is, also one that cannot be read."""
    updated = dict(record)
    for name, value in fields.items():
        encode = table.field(name).encoder
        raw = value if encode is None or value is None else encode(value)
        if raw is None:
            updated.pop(name, None)
        else:
            updated[name] = raw
    return updated


# -- records that cannot be read ------------------------------------------------------------


def read_parts(table: Table[V], raw: Callable[[str], Any], record_id: str) -> V:
    """Read a record field by field, after reading it as a whole has failed. `raw` gives a field's
    raw value, or raises. The value has `unreadable` set, and is logged once in a process.

    What cannot be read has the default of its class. A run in an unknown state counts as
    unfinished, so what comes after it waits."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, field in table.fields.items():
        try:
            value = raw(name)
            if value is not None:
                values[name] = field.reader(value)
            elif field.required:
                raise LookupError("it is missing")
        except Exception as error:  # a damaged part may raise anything
            problems.append(f"{name}: {str(error)[:200] or type(error).__name__}")
            if name in _IF_DAMAGED:
                values[name] = _IF_DAMAGED[name]
    values.setdefault("id", record_id)
    problem = "; ".join(problems) or "it cannot be read as a whole"
    value = table.made(**values, unreadable=problem)
    _log_unreadable(value)
    return value


_IF_DAMAGED = {
    **dict.fromkeys(("job_id", "handler"), ""),
    **dict.fromkeys(("created_at", "updated_at", "scheduled_at", "run_at"), EPOCH),
    "state": State.WAITING,
}
"""What stands for a damaged field, if not the default of its class."""

MOST_REPORTED = 1000
"""How many unreadable records one process names in its log."""

_reported: set[tuple[str, str]] = set()
_guard = Lock()


def _log_unreadable(record: Run | Job) -> None:
    """Log a record that cannot be read. A process logs each record once."""
    kind = "run" if isinstance(record, Run) else "job"
    with _guard:
        if (kind, record.id) in _reported or len(_reported) >= MOST_REPORTED:
            return
        _reported.add((kind, record.id))
    log.error(
        "%s %s cannot be read (%s). It is set aside and left as it is; everything else goes on."
        " A newer version may have written it: upgrade this program. `mainspring doctor` looks"
        " for others like it, among all jobs and the newest 1,000 runs of each state",
        kind,
        record.id,
        record.unreadable,
    )


# -- records --------------------------------------------------------------------------------


run_to_record: Callable[[Run], Record] = record_writer(RUN)
job_to_record: Callable[[Job], Record] = record_writer(JOB)
note_to_record: Callable[[Note], Record] = record_writer(NOTE)
note_from_record: Callable[[Record], Note] = record_reader(NOTE)
_read_run = record_reader(RUN)
_read_job = record_reader(JOB)


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
        return read_parts(table, record.get, str(record.get("id")))
