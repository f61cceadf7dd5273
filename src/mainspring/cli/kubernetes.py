"""Reads manifests of Kubernetes CronJobs into jobs, with a function for each container."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.import_file import HANDLERS, Imported, Remark, free_name
from mainspring.core import schedules
from mainspring.core.options import PolicyOptions, option_names
from mainspring.core.policy import Policy
from mainspring.errors import InputErrors, InvalidInput, install_advice

_OVERLAPS = {"Allow": "allow", "Forbid": "skip", "Replace": "replace"}
_RETRIES = 6
"""What Kubernetes has where backoffLimit is left out."""

_JOB = ("spec", "jobTemplate", "spec")
_POD = (*_JOB, "template", "spec")
_CONTAINERS = (*_POD, "containers")
_FIELDS = {
    "schedule": ("spec", "schedule"),
    "timezone": ("spec", "timeZone"),
    "start_deadline": ("spec", "startingDeadlineSeconds"),
    "retries": (*_JOB, "backoffLimit"),
    "timeout": (*_JOB, "activeDeadlineSeconds"),
    "history": ("spec", "successfulJobsHistoryLimit"),
    "retention": (*_JOB, "ttlSecondsAfterFinished"),
}
"""The fields that become these options of a job."""

_INLINE_ZONE = re.compile(r"\s*(?:CRON_)?TZ=(?P<zone>\S+)\s+(?P<schedule>\S.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^()]+)\))")

Path = tuple[Any, ...]
Lines = dict[Path, int]
AddRemark = Callable[..., None]


class _Malformed(Exception):
    """A field of a manifest has a value that Kubernetes would refuse."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path = path


@dataclass(frozen=True, slots=True)
class _Manifest:
    """One manifest, with the number of its document in the file and the line of each key."""

    value: Any
    lines: Lines
    document: int

    def line(self, path: Path) -> int:
        ends = range(len(path), -1, -1)
        return next(self.lines[path[:end]] for end in ends if path[:end] in self.lines)

    def find(self, path: Path) -> Any:
        """The value at a path; None where there is none."""
        value = self.value
        for at, name in enumerate(path):
            if value is None:
                return None
            if isinstance(name, int):
                value = value[name] if name < len(value) else None
                continue
            if not isinstance(value, Mapping):
                raise _Malformed(path[:at], f"it is an object, not {_shown(value)}")
            value = value.get(name)
        return value

    def table(self, *path: Any) -> Mapping[str, Any]:
        found = self.find(path)
        if found is not None and not isinstance(found, Mapping):
            raise _Malformed(path, f"it is an object, not {_shown(found)}")
        return found or {}

    def items(self, *path: Any) -> list[Any]:
        found = self.find(path)
        if found is not None and not isinstance(found, list):
            raise _Malformed(path, f"it is a list, not {_shown(found)}")
        return found or []

    def text(self, *path: Any) -> str | None:
        found = self.find(path)
        if found is not None and not isinstance(found, str):
            raise _Malformed(path, f"it is a text, not {_shown(found)}")
        return found

    def number(self, least: int, *path: Any) -> int | None:
        found = self.find(path)
        if found is None or (type(found) is int and found >= least):
            return found
        raise _Malformed(path, f"it is a whole number, {least} or more, not {_shown(found)}")


def read_manifests(text: str, source: str, module: str = HANDLERS) -> Imported:
    """The CronJobs of a file with one or more YAML documents, also within a `kind: List`."""
    made = Imported(source, module, timezone="UTC")
    for manifest in _manifests(text, source):
        where = f"document {manifest.document}"
        if not isinstance(manifest.value, Mapping):
            why = f"it is no manifest, but {_shown(manifest.value)}"
            made.remarks.append(Remark(manifest.line(()), where, why))
        elif (kind := manifest.value.get("kind")) != "CronJob":
            why = "only CronJobs are carried over"
            made.remarks.append(Remark(manifest.line(()), str(kind), why))
        else:
            _add(made, manifest)
    return made


def _add(made: Imported, manifest: _Manifest) -> None:
    remarks: list[Remark] = []

    def remark(why: str, *path: Any) -> None:
        remarks.append(Remark(manifest.line(path), ".".join(map(str, path)), why))

    def left_out(why: str, *path: Any) -> None:
        name = manifest.value.get("metadata")
        name = name.get("name") if isinstance(name, Mapping) else None
        called = f"CronJob {name!r}, " if isinstance(name, str) else ""
        remark(f"the job was left out ({called}document {manifest.document}): {why}", *path)

    try:
        given = manifest.text("metadata", "name")
        name = free_name(given or "job", made.jobs)
        options = _options(manifest, remark)
        function = _function(name, manifest, remark)
        _check(options)
        made.add(name, options, function)
    except _Malformed as error:
        remarks.clear()  # what of it could be carried over does not matter
        left_out(str(error), *error.path)
    except InvalidInput as error:
        remarks.clear()
        for one in error.each():
            left_out(str(one), *_FIELDS.get((one.field or "").split(".")[0], ("spec",)))
    made.remarks += remarks


def _options(manifest: _Manifest, remark: AddRemark) -> dict[str, Any]:
    spec, job = manifest.table("spec"), manifest.table(*_JOB)
    zone, schedule = manifest.text("spec", "timeZone"), manifest.text("spec", "schedule") or ""
    if (inline := _INLINE_ZONE.match(schedule)) is not None:
        if zone is not None:
            raise _Malformed(("spec", "schedule"), f"it names a zone, and timeZone {zone!r} too")
        zone, schedule = inline["zone"], inline["schedule"]
    options: dict[str, Any] = {"schedule": schedule}
    if zone is not None:
        options["timezone"] = zone
    else:
        why = "without timeZone Kubernetes uses the controller's zone; UTC is assumed here"
        remark(why, "spec")
    policy = manifest.text("spec", "concurrencyPolicy") or "Allow"
    if policy not in _OVERLAPS:
        path = ("spec", "concurrencyPolicy")
        raise _Malformed(path, f"it is one of {', '.join(_OVERLAPS)}, not {policy!r}")
    options["overlap"] = _OVERLAPS[policy]
    suspend = spec.get("suspend")
    if not isinstance(suspend, bool | None):
        raise _Malformed(("spec", "suspend"), f"it is true or false, not {_shown(suspend)}")
    if suspend:
        options["enabled"] = False
    if (seconds := manifest.number(0, "spec", "startingDeadlineSeconds")) is not None:
        options["start_deadline"] = f"{seconds}s"
    retries = manifest.number(0, *_JOB, "backoffLimit")
    options["retries"] = _RETRIES if retries is None else retries
    if (seconds := manifest.number(1, *_JOB, "activeDeadlineSeconds")) is not None:
        options["timeout"] = f"{seconds}s"
        why = "in Kubernetes it limits all retries together; here `timeout` limits each attempt"
        remark(why, *_JOB, "activeDeadlineSeconds")
    names = ("successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    limits = {n: limit for n in names if (limit := manifest.number(0, "spec", n)) is not None}
    if limits:
        options["history"] = sum(limits.values())
        why = "runs are counted together here, however they ended"
        remark(why, "spec", next(iter(limits)))
    if (seconds := manifest.number(0, *_JOB, "ttlSecondsAfterFinished")) is not None:
        options["retention"] = f"{seconds}s"
    for name in ("parallelism", "completions", "podFailurePolicy"):
        if name in job and job[name] != 1:
            remark("it has no counterpart", *_JOB, name)
    if labels := manifest.table("metadata", "labels"):
        options["metadata"] = {"labels": {str(k): str(v) for k, v in labels.items()}}
    return options


def _check(options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for what `mainspring apply` would refuse."""
    errors = InputErrors()
    with errors:
        schedules.parse(options["schedule"], timezone=options.get("timezone", "UTC"))
    policy = {name: value for name, value in options.items() if name in option_names(PolicyOptions)}
    with errors:
        Policy.make(**policy)
    errors.check()


def _function(name: str, manifest: _Manifest, remark: AddRemark) -> str:
    """A function that runs the container's command, without the container."""
    for key in manifest.table(*_POD):
        if key not in ("containers", "restartPolicy"):
            remark("it has no counterpart", *_POD, key)
    if len(manifest.items(*_CONTAINERS)) > 1:
        remark("only the first container is carried over", *_CONTAINERS, 1)
    first = (*_CONTAINERS, 0)
    for key in manifest.table(*first):
        if key not in ("name", "image", "command", "args", "env", "workingDir"):
            remark("it has no counterpart", *first, key)
    image = manifest.text(*first, "image")
    if image is not None:
        why = "no container is started: the worker needs the programs of the image itself"
        remark(why, *first, "image")
    environment = _environment(manifest, first, remark)
    parts = {name: _string_list(manifest, *first, name) for name in ("command", "args")}
    about = f"Image {image or 'unknown'}."
    if not parts["command"]:
        remark("the image's own entry point is not known here: write the function", *_POD)
        body = '    raise NotImplementedError("write what the image does")\n'
        arguments = _docstring(f"{about} Arguments: {parts['args']!r}.")
        return f"def {name}() -> str:\n    {arguments}\n{body}"
    words = []
    for word in parts["command"] + parts["args"]:
        text, unknown = _expand(word, environment)
        words.append(text)
        for variable in unknown:
            remark(f"$({variable}) is not known here: write its value", *first)
    folder = manifest.text(*first, "workingDir")
    in_folder = "" if folder is None else f"        folder={folder!r},\n"
    return (
        f"def {name}() -> str:\n    {_docstring(about)}\n"
        f"    return run(\n        {words!r},\n        {environment!r},\n{in_folder}    )\n"
    )


def _environment(manifest: _Manifest, container: Path, remark: AddRemark) -> dict[str, str]:
    environment: dict[str, str] = {}
    for at in range(len(manifest.items(*container, "env"))):
        path = (*container, "env", at)
        one = manifest.table(*path)
        name = manifest.text(*path, "name")
        if not name:
            raise _Malformed((*path, "name"), "a variable has a name")
        if "value" not in one:
            remark(f"set {name} in the worker's environment", *path)
            continue
        value = one["value"]
        if isinstance(value, Mapping | list):
            raise _Malformed((*path, "value"), f"it is a text, not {_shown(value)}")
        environment[name], _ = _expand("" if value is None else str(value), environment)
    return environment


def _string_list(manifest: _Manifest, *path: Any) -> list[str]:
    words = manifest.items(*path)
    for at, word in enumerate(words):
        if isinstance(word, Mapping | list | None):
            raise _Malformed((*path, at), f"it is a text, not {_shown(word)}")
    return [str(word) for word in words]


def _docstring(text: str) -> str:
    """A text as a literal that stands well as the docstring of a function."""
    plain = "\\" not in text and '"' not in text and text.isprintable()
    return f'"""{text}"""' if plain else repr(text)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else text[:77] + "..."


def _expand(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """A text with `$(NAME)` replaced as Kubernetes does, which also makes `$$` a `$`; and the names
    that have no value here, which are left as they are."""
    unknown: list[str] = []

    def value(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "$"
        if name not in environment:
            unknown.append(name)
        return environment.get(name, found[0])

    return _REFERENCE.sub(value, text), unknown


def _manifests(text: str, source: str) -> Iterator[_Manifest]:
    try:
        import yaml
    except ImportError:
        raise CommandError(
            "reading YAML needs PyYAML",
            code=BAD_INPUT,
            advice=install_advice("kubernetes"),
        ) from None
    loader = yaml.SafeLoader(text)
    number = 0
    try:
        while loader.check_node():
            number += 1
            node = loader.get_node()
            value = loader.construct_document(node)
            yield from _expand_lists(_Manifest(value, _lines(node), number))
    except yaml.YAMLError as error:
        raise CommandError(f"{source} is not valid YAML: {error}", code=BAD_INPUT) from None
    finally:
        loader.dispose()


def _expand_lists(manifest: _Manifest) -> Iterator[_Manifest]:
    """The manifests of a list, also of one within a list; else the manifest itself."""
    value, lines = manifest.value, manifest.lines
    if value is None:  # an empty document
        return
    if not isinstance(value, Mapping) or value.get("kind") != "List":
        yield manifest
        return
    items = value.get("items")
    if not isinstance(items, list | None):
        own = {p[1:]: line for p, line in lines.items() if p[:1] == ("items",)}
        yield _Manifest(items, own, manifest.document)
        return
    for at, item in enumerate(items or []):
        own = {p[2:]: line for p, line in lines.items() if p[:2] == ("items", at)}
        yield from _expand_lists(_Manifest(item, own or {(): lines[()]}, manifest.document))


def _lines(node: Any) -> Lines:
    """The line of each key and item of a YAML node. What an alias repeats is walked once."""
    lines: Lines = {}
    walked: set[int] = set()

    def walk(one: Any, path: Path) -> None:
        lines.setdefault(path, one.start_mark.line + 1)
        if id(one) in walked:
            return
        walked.add(id(one))
        if one.id == "mapping":
            for key, value in one.value:
                lines[*path, key.value] = key.start_mark.line + 1
                walk(value, (*path, key.value))
        elif one.id == "sequence":
            for at, value in enumerate(one.value):
                walk(value, (*path, at))

    walk(node, ())
    return lines
