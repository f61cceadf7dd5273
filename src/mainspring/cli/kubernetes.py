"""Reads manifests of Kubernetes CronJobs into jobs, with a function for each container."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.import_file import HANDLERS, Imported, Remark, free_name
from mainspring.core import schedules
from mainspring.core.options import PolicyOptions, option_names
from mainspring.core.policy import Policy
from mainspring.errors import InputErrors, InvalidInput, install_advice

_RETRIES = 6
"""What Kubernetes has where backoffLimit is left out."""

_OVERLAPS = {"Allow": "allow", "Forbid": "skip", "Replace": "replace"}

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
_PLACE = re.compile(r"\.([^.\[`]+)|\[(\d+)\]")
"""The parts of a place that msgspec names, such as `$.spec.containers[0].image`."""

_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^()]+)\))")

Path = tuple[Any, ...]
Lines = dict[Path, int]
AddRemark = Callable[..., None]
Count = Annotated[int, Meta(ge=0)]
Scalar = str | int | float | bool


# The parts of a manifest, with what is read of them and the defaults of Kubernetes


class _Variable(Struct, frozen=True, rename="camel"):
    name: Annotated[str, Meta(min_length=1)]
    value: Scalar | UnsetType | None = UNSET


class _Container(Struct, frozen=True, rename="camel"):
    image: str | None = None
    command: list[Scalar] | None = None
    args: list[Scalar] | None = None
    env: list[_Variable] | None = None
    working_dir: str | None = None


class _Pod(Struct, frozen=True, rename="camel"):
    containers: list[_Container] | None = None


class _Template(Struct, frozen=True, rename="camel"):
    spec: _Pod = _Pod()


class _Job(Struct, frozen=True, rename="camel"):
    template: _Template = _Template()
    backoff_limit: Count | None = None
    active_deadline_seconds: Annotated[int, Meta(ge=1)] | None = None
    ttl_seconds_after_finished: Count | None = None


class _JobTemplate(Struct, frozen=True, rename="camel"):
    spec: _Job = _Job()


class _Spec(Struct, frozen=True, rename="camel"):
    schedule: str = ""
    time_zone: str | None = None
    suspend: bool | None = None
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] | None = None
    starting_deadline_seconds: Count | None = None
    successful_jobs_history_limit: Count | None = None
    failed_jobs_history_limit: Count | None = None
    job_template: _JobTemplate = _JobTemplate()


class _Metadata(Struct, frozen=True, rename="camel"):
    name: str | None = None
    labels: dict[str, Scalar] | None = None


class _CronJob(Struct, frozen=True, rename="camel"):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


@dataclass(frozen=True, slots=True)
class _Manifest:
    """One manifest, with the number of its document in the file and the line of each key."""

    value: Any
    lines: Lines
    document: int

    def line(self, path: Path) -> int:
        ends = range(len(path), -1, -1)
        return next(self.lines[path[:end]] for end in ends if path[:end] in self.lines)

    def keys(self, *path: Any) -> list[str]:
        """The keys of the object at a path."""
        return [known[-1] for known in self.lines if len(known) > 0 and known[:-1] == path]


def read_manifests(text: str, source: str, module: str = HANDLERS) -> Imported:
    """The CronJobs of a file with one or more YAML documents, also within a `kind: List`."""
    imported = Imported(source, module, timezone="UTC")
    for manifest in _manifests(text, source):
        if not isinstance(manifest.value, Mapping):
            what, why = f"document {manifest.document}", "it is no manifest"
        elif (kind := manifest.value.get("kind")) != "CronJob":
            what, why = str(kind), "only CronJobs are carried over"
        else:
            _add(imported, manifest)
            continue
        imported.remarks.append(Remark(manifest.line(()), what, why))
    return imported


def _add(imported: Imported, manifest: _Manifest) -> None:
    remarks: list[Remark] = []

    def remark(why: str, *path: Any) -> None:
        remarks.append(Remark(manifest.line(path), ".".join(map(str, path)), why))

    def left_out(why: str, *path: Any) -> None:
        name = manifest.value.get("metadata")
        name = name.get("name") if isinstance(name, Mapping) else None
        called = f"CronJob {name!r}, " if isinstance(name, str) else ""
        remark(f"the job was left out ({called}document {manifest.document}): {why}", *path)

    try:
        cronjob = msgspec.convert(manifest.value, _CronJob)
        name = free_name(cronjob.metadata.name or "job", imported.jobs)
        options = _options(cronjob, manifest, remark)
        function = _function(name, cronjob.spec.job_template.spec.template.spec, manifest, remark)
        _check(options)
        imported.add(name, options, function)
    except msgspec.ValidationError as error:
        remarks.clear()  # what of it could be carried over does not matter
        why, _, place = str(error).partition(" - at ")
        left_out(why, *(int(at) if at else name for name, at in _PLACE.findall(place)))
    except InvalidInput as error:
        remarks.clear()
        for fault in error.each():
            left_out(str(fault), *_FIELDS.get((fault.field or "").split(".")[0], ("spec",)))
    imported.remarks += remarks


def _options(cronjob: _CronJob, manifest: _Manifest, remark: AddRemark) -> dict[str, Any]:
    spec, job = cronjob.spec, cronjob.spec.job_template.spec
    zone, schedule = spec.time_zone, spec.schedule
    if (inline := _INLINE_ZONE.match(schedule)) is not None:
        if zone is not None:
            why = f"it names a zone, and timeZone {zone!r} too"
            raise InvalidInput(why, field="schedule", given=schedule, allowed="one zone")
        zone, schedule = inline["zone"], inline["schedule"]
    options: dict[str, Any] = {"schedule": schedule}
    if zone is not None:
        options["timezone"] = zone
    else:
        why = "without timeZone Kubernetes uses the controller's zone; UTC is assumed here"
        remark(why, "spec")
    options["overlap"] = _OVERLAPS[spec.concurrency_policy or "Allow"]
    if spec.suspend:
        options["enabled"] = False
    if spec.starting_deadline_seconds is not None:
        options["start_deadline"] = f"{spec.starting_deadline_seconds}s"
    options["retries"] = _RETRIES if job.backoff_limit is None else job.backoff_limit
    if job.active_deadline_seconds is not None:
        options["timeout"] = f"{job.active_deadline_seconds}s"
        why = "in Kubernetes it limits all retries together; here `timeout` limits each attempt"
        remark(why, *_JOB, "activeDeadlineSeconds")
    succeeded, failed = spec.successful_jobs_history_limit, spec.failed_jobs_history_limit
    if succeeded is not None or failed is not None:
        options["history"] = (succeeded or 0) + (failed or 0)
        which = "failed" if succeeded is None else "successful"
        remark(
            "runs are counted together here, however they ended", "spec", f"{which}JobsHistoryLimit"
        )
    if job.ttl_seconds_after_finished is not None:
        options["retention"] = f"{job.ttl_seconds_after_finished}s"
    for name in manifest.keys(*_JOB):
        if name in ("parallelism", "completions", "podFailurePolicy"):
            remark("it has no counterpart", *_JOB, name)
    if labels := cronjob.metadata.labels:
        options["metadata"] = {"labels": {name: str(value) for name, value in labels.items()}}
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


def _function(name: str, pod: _Pod, manifest: _Manifest, remark: AddRemark) -> str:
    """A function that runs the container's command, without the container."""
    for key in manifest.keys(*_POD):
        if key not in ("containers", "restartPolicy"):
            remark("it has no counterpart", *_POD, key)
    containers = pod.containers or []
    if len(containers) > 1:
        remark("only the first container is carried over", *_CONTAINERS, 1)
    first = (*_CONTAINERS, 0)
    for key in manifest.keys(*first):
        if key not in ("name", "image", "command", "args", "env", "workingDir"):
            remark("it has no counterpart", *first, key)
    container = containers[0] if containers else _Container()
    if container.image is not None:
        why = "no container is started: the worker needs the programs of the image itself"
        remark(why, *first, "image")
    environment: dict[str, str] = {}
    for at, variable in enumerate(container.env or []):
        if isinstance(variable.value, UnsetType):
            remark(f"set {variable.name} in the worker's environment", *first, "env", at)
        else:
            value = "" if variable.value is None else str(variable.value)
            environment[variable.name], _ = _expand(value, environment)
    about, arguments = f"Image {container.image or 'unknown'}.", container.args or []
    if not container.command:
        remark("the image's own entry point is not known here: write the function", *_POD)
        body = '    raise NotImplementedError("write what the image does")\n'
        about = _docstring(f"{about} Arguments: {arguments!r}.")
        return f"def {name}() -> str:\n    {about}\n{body}"
    words = []
    for word in [*container.command, *arguments]:
        text, unknown = _expand(str(word), environment)
        words.append(text)
        for missing in unknown:
            remark(f"$({missing}) is not known here: write its value", *first)
    folder = container.working_dir
    in_folder = "" if folder is None else f"        folder={folder!r},\n"
    return (
        f"def {name}() -> str:\n    {_docstring(about)}\n"
        f"    return run(\n        {words!r},\n        {environment!r},\n{in_folder}    )\n"
    )


def _docstring(text: str) -> str:
    """A text as a literal that stands well as the docstring of a function."""
    plain = "\\" not in text and '"' not in text and text.isprintable()
    return f'"""{text}"""' if plain else repr(text)


def _expand(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """A text with `$(NAME)` replaced as Kubernetes does, which also makes `$$` a `$`; and the names
    that have no value here, which are left as they are."""
    unknown: list[str] = []

    def value(reference: re.Match[str]) -> str:
        name = reference["name"]
        if name is None:
            return "$"
        if name not in environment:
            unknown.append(name)
        return environment.get(name, reference[0])

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
    for at, item in enumerate(items if isinstance(items, list) else [items]):
        start = ("items", at) if isinstance(items, list) else ("items",)
        own = {p[len(start) :]: line for p, line in lines.items() if p[: len(start)] == start}
        yield from _expand_lists(_Manifest(item, own or {(): lines[()]}, manifest.document))


def _lines(node: Any) -> Lines:
    """The line of each key and item of a YAML node. What an alias repeats is walked once."""
    lines: Lines = {}
    walked: set[int] = set()

    def walk(part: Any, path: Path) -> None:
        lines.setdefault(path, part.start_mark.line + 1)
        if id(part) in walked:
            return
        walked.add(id(part))
        if part.id == "mapping":
            for key, value in part.value:
                lines[*path, key.value] = key.start_mark.line + 1
                walk(value, (*path, key.value))
        elif part.id == "sequence":
            for at, value in enumerate(part.value):
                walk(value, (*path, at))

    walk(node, ())
    return lines
