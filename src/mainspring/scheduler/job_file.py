"""Reads jobs that are written as data: a file such as `mainspring.toml`, or `Scheduler(jobs={…})`.

A handler is named as `module:function` and imported; a program may also give the function itself.
That happens only for a file or mapping that the program or the command line names: never for what
is stored, and never for a request.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from mainspring.core.handlers import Handler, Registry
from mainspring.core.model import check_key
from mainspring.core.options import JobOptions, PolicyOptions, option_names
from mainspring.core.policy import MAX_NAME, check_defaults
from mainspring.core.schedules.zones import check_zone
from mainspring.engine.settings import read_prune_every
from mainspring.errors import (
    HandlerNotFound,
    InputErrors,
    InvalidInput,
    JobExists,
    UnknownOption,
    refused,
)
from mainspring.scheduler.decorator import DecoratedJob

FILE_KEYS = ("name", "timezone", "prune_every", "defaults", "notify", "jobs")
JOB_KEYS = frozenset({*option_names(JobOptions), "schedule", "handler", "url", "webhook"})
"""The keys of one job: the options of `add_job`, and `url`, which is short for a webhook's."""

_VARIABLE = re.compile(r"\$(\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?=\{))")
_SECRETS = ("headers", "secret_headers", "signing_secret")
"""The fields of a webhook that may hold `${NAME}`: what it stands for is kept encrypted."""

_MAY_BE_NONE = frozenset(
    name for name, kind in get_type_hints(PolicyOptions).items() if NoneType in get_args(kind)
)
"""The options that a file sets to none by the text "none": TOML has no null."""


@dataclass(frozen=True, slots=True)
class JobSet:
    """Jobs as data. `name` tells the jobs of one file from those of another on the same store."""

    jobs: dict[str, Mapping[str, Any]]
    """The options of `add_job`, by job id."""
    name: str | None = None
    timezone: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    """The file that they were read from."""
    states_name: bool = False
    """Whether the file itself has a `name`. Files in other folders may share the one that is made
    from the file's own, so that one is no reason to remove a job."""
    prune_every: timedelta | None = None
    """How often a process that loads the file deletes finished runs."""
    notify: Any = None
    """The settings of `mainspring.contrib.notify`."""
    url_jobs: frozenset[str] = frozenset()
    """Jobs whose webhook was given as `url`."""

    def place_error(self, error: InvalidInput, job_id: str) -> InvalidInput:
        """The error of a job with its place: the file and the full key."""
        field = error.field or ""
        if field in ("webhook", "webhook.url") and job_id in self.url_jobs:
            field = "url"
        return _place(error, self.path, "jobs", job_id, *filter(None, field.split(".")))

    @contextmanager
    def add_error_places(self) -> Iterator[None]:
        """Add the file and the key to errors of the block that name a job of this set."""

        def place(error: InvalidInput) -> InvalidInput:
            is_own = error.job_id is not None and error.job_id in self.jobs
            return self.place_error(error, error.job_id or "") if is_own else error

        errors = InputErrors()
        try:
            with _collecting(errors, place):
                yield
            errors.check()
        except JobExists as error:
            if error.job_id is not None and error.job_id in self.jobs:
                error.args = (_in_file(self.path, f"jobs.{error.job_id}: {error}"),)
            raise

    def register_handlers(self, registry: Registry) -> None:
        """Import the functions that the jobs name as `module:function`, and register them. A
        function that is given itself is registered under the id of its job, as a decorated one."""
        if self.path is not None:
            folder = str(self.path.parent.absolute())
            if folder not in sys.path[:1]:
                sys.path.insert(0, folder)
        errors = InputErrors()
        for job_id, options in list(self.jobs.items()):
            handler = options.get("handler")
            try:
                if isinstance(handler, str) and ":" in handler and registry.find(handler) is None:
                    registry.add(Handler(handler, _imported(handler)))
                elif callable(handler) and not isinstance(handler, DecoratedJob):
                    registry.add(Handler(job_id, handler))
                    self.jobs[job_id] = {**options, "handler": job_id}
            except (InvalidInput, JobExists) as error:
                wrong = InvalidInput(str(error), field="handler", given=handler)
                errors.add(self.place_error(wrong, job_id))
        errors.check()

    def collect(self, draft: Callable[..., Any]) -> list[Any]:
        """Call `draft(job_id, **options)` for each job. All errors are raised together."""
        errors, drafts = InputErrors(), []
        for job_id, options in self.jobs.items():
            with _collecting(errors, partial(self.place_error, job_id=job_id)):
                try:
                    drafts.append(draft(job_id, **options))
                except HandlerNotFound as error:
                    raise InvalidInput(
                        f"{error}. Name a function to import as module:function, or one that the"
                        " program registers",
                        field="handler",
                    ) from None
        errors.check()
        return drafts


@contextmanager
def _collecting(
    errors: InputErrors, place: Callable[[InvalidInput], InvalidInput]
) -> Iterator[None]:
    """Collect the errors of the block, each with its place."""
    try:
        yield
    except InvalidInput as error:
        for wrong in error.each():
            errors.add(place(wrong))


def _place(
    error: InvalidInput, path: Path | None, *keys: str, named_already: bool = False
) -> InvalidInput:
    """The error with the file and the full key in its message."""
    key = ".".join(keys)
    error.others = ()  # the caller reports each by itself
    words = str(error) if named_already else ": ".join(filter(None, [key, str(error)]))
    error.args = (_in_file(path, words),)
    error.field = key or None
    error.file = None if path is None else str(path)
    return error


def _in_file(path: Path | None, words: str) -> str:
    return words if path is None else f"{path}: {words}"


def read_job_file(path: str | Path) -> JobSet:
    """Read and check a file. `InvalidInput` names the file and the key of each error."""
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")  # some editors put a byte order mark before the text
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}", field="file", given=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", field="file") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}", field="file") from None
    return _read(document, path)


def read_jobs(jobs: Mapping[str, Mapping[str, Any]]) -> JobSet:
    """Jobs as a program gives them: what the table `jobs` of a file would hold."""
    if not isinstance(jobs, Mapping):
        raise refused("jobs", jobs, "is an object of jobs by their ids, or the path of a file")
    return _read({"jobs": jobs}, None)


def _read(document: Mapping[str, Any], path: Path | None) -> JobSet:
    errors = InputErrors()

    def at(*keys: str) -> AbstractContextManager[None]:
        return _collecting(errors, lambda error: _place(error, path, *keys))

    def at_default(error: InvalidInput) -> InvalidInput:
        keys = (error.field or "defaults").split(".")
        return _place(error, path, *keys, named_already=True)

    for key in document.keys() - set(FILE_KEYS):
        with at(key):
            raise UnknownOption([key], FILE_KEYS, "key")
    name, timezone = document.get("name"), document.get("timezone")
    if path is not None and name is None:
        name = path.stem
    with at("name"):
        if name is not None:
            _check_name(name)
    with at("timezone"):
        if timezone is not None:
            check_zone(timezone)
    prune_every = document.get("prune_every")
    with at("prune_every"):
        if prune_every is not None:
            prune_every = read_prune_every(prune_every)
    defaults = document.get("defaults")
    if isinstance(defaults, Mapping):
        defaults = _without_none(defaults)
    with _collecting(errors, at_default):
        check_defaults(defaults)
    notify = document.get("notify")

    def at_notify(error: InvalidInput) -> InvalidInput:
        keys = (error.field or "").strip(".").split(".")
        return _place(error, path, "notify", *filter(None, keys))

    if notify is not None:
        with _collecting(errors, at_notify):
            notify = _notify_module().read_settings(_expand(notify, ""))
    jobs = document.get("jobs", {})
    read: dict[str, Mapping[str, Any]] = {}
    with at("jobs"):
        if not isinstance(jobs, Mapping):
            raise InvalidInput(
                "jobs is a table with one table for each job ([jobs.nightly]), not a"
                f" {type(jobs).__name__}"
            )
    for job_id, options in jobs.items() if isinstance(jobs, Mapping) else ():
        with at("jobs", str(job_id)):
            if not isinstance(options, Mapping):
                raise InvalidInput(
                    f"a job is a table with keys such as schedule and handler, not {options!r}"
                )
            if not isinstance(job_id, str):
                raise InvalidInput(f"a job's id is a text, not {job_id!r}", field="id")
            read[job_id] = _read_job(options, path, job_id, errors)
    errors.check()
    return JobSet(
        read,
        name,
        timezone,
        defaults or {},
        path,
        states_name=document.get("name") is not None,
        prune_every=prune_every,
        notify=notify,
        url_jobs=frozenset(job_id for job_id in read if "url" in jobs[job_id]),
    )


def install_notify(client: Any, job_set: JobSet) -> None:
    if job_set.notify is not None:
        _notify_module().install_settings(client, job_set.notify)


def _notify_module() -> Any:
    """By name: it is a layer above this one, and most programs never need it."""
    return import_module("mainspring.contrib.notify")


def _read_job(
    options: Mapping[str, Any], path: Path | None, job_id: str, errors: InputErrors
) -> dict[str, Any]:
    job = _without_none(options)
    for key in sorted(map(str, job.keys() - JOB_KEYS)):
        errors.add(_place(UnknownOption([key], JOB_KEYS, "key"), path, "jobs", job_id, key))
        del job[key]
    url = job.pop("url", None)
    if url is not None and "webhook" in job:
        wrong = InvalidInput("give url or webhook, not both: a webhook has a url itself")
        errors.add(_place(wrong, path, "jobs", job_id, "url"))
    elif url is not None:
        job["webhook"] = url

    def place(error: InvalidInput) -> InvalidInput:
        key = "url" if url is not None else error.field or "webhook"
        return _place(error, path, "jobs", job_id, *key.split("."))

    if "webhook" in job and path is not None:
        with _collecting(errors, place):
            job["webhook"] = _expand_webhook(job["webhook"])
    return job


def read_value(name: str, value: Any) -> Any:
    """A value of a file or of the command line: the text "none" is None where that is allowed."""
    return None if value == "none" and name in _MAY_BE_NONE else value


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: read_value(name, value) for name, value in options.items()}


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise refused("name", name, f"is 1 to {MAX_NAME} printable characters")
    check_key(name, "a name")


# Variables of the environment


def _expand_webhook(webhook: Any) -> Any:
    """The webhook with `${NAME}` replaced in its headers and its signing secret. A header that uses
    one is kept encrypted; the other fields are stored and shown as they are, so it is refused."""
    errors = InputErrors()
    if isinstance(webhook, str):
        _refuse_variables(webhook, "webhook")
        return _expand(webhook, "webhook")
    if not isinstance(webhook, Mapping):
        return webhook
    made: dict[str, Any] = {}
    for name, value in webhook.items():
        with errors:
            if name not in _SECRETS:
                _refuse_variables(value, f"webhook.{name}")
            made[name] = _expand(value, f"webhook.{name}")
    errors.check()
    plain = webhook.get("headers")
    if isinstance(plain, Mapping):
        secret = [name for name, text in plain.items() if _uses_variable(text)]
        marked = made.get("secret_headers")
        if secret and isinstance(marked, Mapping | None):
            made["secret_headers"] = {name: made["headers"].pop(name) for name in secret} | dict(
                marked or {}
            )
    return made


def _refuse_variables(value: Any, name: str) -> None:
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            _refuse_variables(item, name)
    elif _uses_variable(value):
        raise InvalidInput(
            "${…} stands for an environment variable only in headers, secret_headers and"
            " signing_secret, which are encrypted; this is stored and shown as it is. Put a secret"
            " in a header, or write $${ for the characters themselves",
            field=name,
        )


def _uses_variable(value: Any) -> bool:
    return isinstance(value, str) and any(match["name"] for match in _VARIABLE.finditer(value))


def _expand(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match, name), value)
    if isinstance(value, Mapping):
        return {key: _expand(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, name) for item in value]
    return value


def _variable(match: re.Match[str], name: str) -> str:
    variable = match["name"]
    if match[1] == "$":
        return "$"
    if variable is None:
        raise InvalidInput(
            "${ begins the name of an environment variable, as in ${API_TOKEN}; write $${ for the"
            " characters themselves",
            field=name,
        )
    if variable not in os.environ:
        raise InvalidInput(
            f"the environment variable {variable} is not set, and ${{{variable}}} stands for its"
            " value: set it, or write $${" + variable + "} for the characters themselves",
            field=name,
        )
    return os.environ[variable]


# Handlers


def _imported(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module_name, _, path = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise InvalidInput(
            f"{name!r} is not module:function, as in reports:nightly", field="handler", given=name
        )
    try:
        target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from error
        raise InvalidInput(
            f"there is no module {error.name!r} next to the file or on the Python path",
            field="handler",
            given=name,
        ) from None
    except Exception as error:
        raise _broken(module_name, error) from error
    except SystemExit as error:
        if type(error) is not SystemExit:  # the command line's own, by which a signal ends it
            raise
        raise _broken(module_name, error) from error
    is_being_imported = getattr(target.__spec__, "_initializing", False)
    for part in path.split("."):
        if not hasattr(target, part):
            why = f"module {module_name!r} has no function {path!r}"
            if is_being_imported:
                why += (
                    " yet: the module is still being imported. Define the function above the"
                    " scheduler, or put it into a module of its own"
                )
            raise InvalidInput(why, field="handler", given=name)
        target = getattr(target, part)
    handler = getattr(target, "handler", None)
    function: Callable[..., Any] = handler.function if isinstance(handler, Handler) else target
    return function


def _broken(module: str, error: BaseException) -> InvalidInput:
    words = f"{type(error).__name__}: {error}"
    return InvalidInput(f"importing {module!r} failed: {words}", field="handler")
