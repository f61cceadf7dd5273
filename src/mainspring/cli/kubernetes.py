"""Reads manifests of Kubernetes CronJobs into jobs, with a function for each container."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.import_file import HANDLERS, Imported, Remark, free_name
from mainspring.core import schedules
from mainspring.errors import InvalidInput

__all__ = ["read_manifests"]

_OVERLAPS = {"Allow": "allow", "Forbid": "skip", "Replace": "replace"}
_RETRIES = 6
"""What Kubernetes has where backoffLimit is left out."""

_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^()]+)\))")

Lines = dict[tuple[Any, ...], int]


def read_manifests(text: str, source: str, module: str = HANDLERS) -> Imported:
    """The CronJobs of a file with one or more YAML documents, also within a `kind: List`."""
    made = Imported(source, module, timezone="UTC")
    for manifest, lines in _manifests(text, source):
        kind = manifest.get("kind")
        if kind != "CronJob":
            made.remarks.append(Remark(lines[()], str(kind), "only CronJobs are carried over"))
        else:
            _add(made, manifest, lines)
    return made


def _add(made: Imported, manifest: Mapping[str, Any], lines: Lines) -> None:
    def remark(why: str, *path: Any) -> None:
        line = next(lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines)
        made.remarks.append(Remark(line, ".".join(map(str, path)), why))

    metadata, spec = _table(manifest, "metadata"), _table(manifest, "spec")
    job = _table(_table(spec, "jobTemplate"), "spec")
    pod = _table(_table(job, "template"), "spec")
    schedule = str(spec.get("schedule", ""))
    options: dict[str, Any] = {"schedule": schedule}
    if "timeZone" in spec:
        options["timezone"] = spec["timeZone"]
    else:
        remark("without timeZone the controller's zone holds there; UTC is assumed", "spec")
    try:
        schedules.parse(schedule, timezone=str(options.get("timezone", "UTC")))
    except InvalidInput as error:
        remark(f"the job was left out: {error}", "spec", "schedule")
        return
    options["overlap"] = _OVERLAPS.get(spec.get("concurrencyPolicy", "Allow"), "allow")
    if spec.get("suspend") is True:
        options["enabled"] = False
    if "startingDeadlineSeconds" in spec:
        options["start_deadline"] = f"{spec['startingDeadlineSeconds']}s"
    options["retries"] = job.get("backoffLimit", _RETRIES)
    if "activeDeadlineSeconds" in job:
        options["timeout"] = f"{job['activeDeadlineSeconds']}s"
        path = ("spec", "jobTemplate", "spec", "activeDeadlineSeconds")
        remark("it bounds each attempt here, and all retries together there", *path)
    _read_history(spec, job, options, remark)
    for name in ("parallelism", "completions", "podFailurePolicy"):
        if name in job and job[name] != 1:
            remark("it has no counterpart", "spec", "jobTemplate", "spec", name)
    name = free_name(str(metadata.get("name", "job")), made.jobs, "job")
    if labels := _table(metadata, "labels"):
        options["metadata"] = {"labels": {str(k): str(v) for k, v in labels.items()}}
    made.add(name, options, _function(name, pod, remark))


def _read_history(
    spec: Mapping[str, Any], job: Mapping[str, Any], options: dict[str, Any], remark: Any
) -> None:
    limits = [n for n in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit") if n in spec]
    if limits:
        options["history"] = max(sum(int(spec[name]) for name in limits), 1)
        remark("runs are counted together here, however they ended", "spec", limits[0])
    if "ttlSecondsAfterFinished" in job:
        options["retention"] = f"{job['ttlSecondsAfterFinished']}s"


def _function(name: str, pod: Mapping[str, Any], remark: Any) -> str:
    """A function that runs the container's command, without the container."""
    path = ("spec", "jobTemplate", "spec", "template", "spec")
    for key in pod:
        if key not in ("containers", "restartPolicy"):
            remark("it has no counterpart", *path, key)
    containers = pod.get("containers") or [{}]
    if len(containers) > 1:
        remark("only the first container is carried over", *path, "containers", 1)
    container = containers[0]
    for key in container:
        if key not in ("name", "image", "command", "args", "env"):
            remark("it has no counterpart", *path, "containers", 0, key)
    if "image" in container:
        why = "no container is started: the worker needs the programs of the image itself"
        remark(why, *path, "containers", 0, "image")
    environment: dict[str, str] = {}
    for at, one in enumerate(container.get("env") or []):
        if "value" in one:
            value, _ = _expand(str(one["value"]), environment)
            environment[one["name"]] = value
        else:
            why = f"set {one.get('name')} in the worker's environment"
            remark(why, *path, "containers", 0, "env", at)
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    about = f"Image {container.get('image', 'unknown')}."
    if not container.get("command"):
        remark("the image's own entry point is not known here: write the function", *path)
        body = '    raise NotImplementedError("write what the image does")\n'
        return f'def {name}() -> str:\n    """{about} Arguments: {command!r}."""\n{body}'
    words = []
    for word in command:
        text, unknown = _expand(str(word), environment)
        words.append(text)
        for variable in unknown:
            remark(f"$({variable}) is not known here: write its value", *path, "containers", 0)
    return (
        f'def {name}() -> str:\n    """{about}"""\n'
        f"    return run(\n        {words!r},\n        {environment!r},\n    )\n"
    )


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


def _table(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}


def _manifests(text: str, source: str) -> Iterator[tuple[Mapping[str, Any], Lines]]:
    try:
        import yaml
    except ImportError:
        raise CommandError(
            "reading YAML needs PyYAML",
            code=BAD_INPUT,
            advice="pip install 'mainspring[kubernetes]'",
        ) from None
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            yield from _unlisted(*_read(loader, node))
    except yaml.YAMLError as error:
        raise CommandError(f"{source} is not valid YAML: {error}", code=BAD_INPUT) from None
    finally:
        loader.dispose()


def _unlisted(value: Any, lines: Lines) -> Iterator[tuple[Mapping[str, Any], Lines]]:
    if not isinstance(value, Mapping):
        return
    if value.get("kind") == "List":
        for at, item in enumerate(value.get("items") or []):
            own = {p[2:]: line for p, line in lines.items() if p[:2] == ("items", at)}
            yield from _unlisted(item, own)
    else:
        yield value, lines


def _read(loader: Any, node: Any) -> tuple[Any, Lines]:
    """A YAML node as a value, and the line of each key and item in it."""
    lines: Lines = {}

    def walk(one: Any, path: tuple[Any, ...]) -> None:
        lines.setdefault(path, one.start_mark.line + 1)
        if one.id == "mapping":
            for key, value in one.value:
                lines[*path, key.value] = key.start_mark.line + 1
                walk(value, (*path, key.value))
        elif one.id == "sequence":
            for at, value in enumerate(one.value):
                walk(value, (*path, at))

    walk(node, ())
    return loader.construct_document(node), lines
