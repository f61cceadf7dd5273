"""`mainspring import`: turns crontabs and CronJob manifests into a file of jobs."""

from __future__ import annotations

import json
import keyword
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from msgspec import Meta, Struct

from mainspring.cli.command import Call, command
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import argument, flag, option
from mainspring.cli.output import Output
from mainspring.core import schedules
from mainspring.core.options import PolicyOptions, option_names
from mainspring.core.plurals import plural
from mainspring.core.policy import Policy
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InputErrors, InvalidInput, install_advice

HANDLERS = "imported_handlers"
"""The module that holds the functions, where no file is named that it could stand beside."""

group = typer.Typer(help="Turn a crontab or CronJob manifests into a file of jobs.")

_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\"[^\"]*\"|'[^']*')\s*=\s*(.*?)\s*$")
_CHANGES_FOLDER = re.compile(r"""\s*cd\s+('[^']*'|"[^"]*"|[^\s;&'"]+)\s*(&&|;)\s*(?=\S)""")
_ZONE = "CRON_TZ"  # TZ is a variable of the command, as any other
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_NO_MAIL = "no mail is sent: the output is the run's result; listen to run.failed"
_NO_VARIABLES = {
    "MAILTO": _NO_MAIL,
    "MAILFROM": _NO_MAIL,
    "RANDOM_DELAY": 'no job is delayed: jitter = "{}m" of a job does the same',
}
"""What is said of settings of cron that are no variables of the commands."""
_AT_START = "@reboot"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")

SOURCE_ARGUMENT = argument("The file to read; - is stdin.", "FILE")
OUT_OPTION = option(
    "Write the jobs to this file, and their functions next to it. Existing files are kept.", "FILE"
)
NAME_OPTION = option(
    "The name of the file of jobs, by which `mainspring apply` knows the jobs that came from it."
    " Default: made from the files' names and this machine's.",
    "NAME",
)


@command(
    group,
    "crontab",
    "crontab -l | mainspring import crontab - --out mainspring.toml",
    "mainspring import crontab /etc/crontab --system",
    uses_store=False,
)
def crontab(
    call: Call,
    source: str = SOURCE_ARGUMENT,
    out: str | None = OUT_OPTION,
    name: str | None = NAME_OPTION,
    system: bool = flag("--system", "Lines name a user before the command, as in /etc/crontab."),
    timezone: str | None = option(
        "The zone of the crontab. Default: this machine's.", "ZONE", "--timezone", "--tz"
    ),
) -> None:
    """Make a job of each line of a crontab.

    Each job gets a function that runs the command of the line. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    zone = timezone or local_timezone()
    if timezone is not None:
        zone_named(timezone)
    is_system = system or source == "/etc/crontab" or Path(source).parent.name == "cron.d"
    imported = read_crontab(
        _read(source), source, system=is_system, timezone=zone or "UTC", module=_module(out)
    )
    if zone is None:
        imported.remark(1, "timezone", "this machine's is not known: UTC is assumed")
    _finish(imported, out, name, call.output)


@command(
    group,
    "k8s",
    "mainspring import k8s cronjobs.yaml --out mainspring.toml",
    uses_store=False,
)
def k8s(
    call: Call,
    source: str = SOURCE_ARGUMENT,
    out: str | None = OUT_OPTION,
    name: str | None = NAME_OPTION,
) -> None:
    """Make a job of each CronJob of a manifest.

    Each job gets a function that runs the command of the container. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    _finish(read_manifests(_read(source), source, _module(out)), out, name, call.output)


def _name(source: str, out: str | None) -> str:
    """A name that only this import on this machine has, because `apply` removes jobs by it. The
    same import gets the same name again."""
    places = [socket.gethostname(), str(Path(source).absolute())]
    digest = sha256("\0".join(places).encode("utf-8", "replace")).hexdigest()
    stem = Path(out if out is not None else source).stem
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem)[:100]
    return f"{plain.strip('-') or 'imported'}-{digest[:6]}"


def _module(out: str | None) -> str:
    """The module for the functions of a file: each file of a folder has its own."""
    if out is None:
        return HANDLERS
    plain = re.sub(r"\W", "_", Path(out).stem)
    return f"{'_' if plain[:1].isdigit() else ''}{plain}_handlers"


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text("utf-8")
    except OSError as error:
        raise CommandError(f"{source} cannot be read: {error.strerror}", code=BAD_INPUT) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{source} is not UTF-8 text: {error}", code=BAD_INPUT) from None


def _finish(imported: Imported, out: str | None, name: str | None, output: Output) -> None:
    imported.name = name if name is not None else _name(imported.source, out)
    if not imported.jobs:
        raise CommandError(
            f"{imported.source} has no job that can be carried over; nothing was written",
            code=BAD_INPUT,
            advice="\n  ".join(map(str, imported.remarks)),
        )
    if out is not None:
        _write(imported, Path(out))
    output.document(
        {
            "toml": imported.toml(),
            "handlers": imported.handlers(),
            "jobs": list(imported.jobs),
            "not_carried_over": [asdict(remark) for remark in imported.remarks],
        }
    )
    if out is None:
        output.line(imported.toml().rstrip())
        output.note("--out FILE also writes the functions of the jobs, next to it")
    else:
        jobs = plural(len(imported.jobs), "job")
        output.line(
            f"wrote {jobs} to {out}, and their functions to {imported.module}.py next to it"
        )
    if imported.remarks:
        output.note(f"not carried over from {imported.source}, or not as it was:")
    for remark in imported.remarks:
        output.note(f"  {remark}")


def _write(imported: Imported, path: Path) -> None:
    code = path.with_name(f"{imported.module}.py")
    advice = "name another file with --out, or move it away"
    for file in (path, code):
        if file.exists():
            message = f"{file} exists, and is not overwritten"
            raise CommandError(message, code=BAD_INPUT, advice=advice)
    try:
        code.write_text(imported.handlers(), "utf-8")
        path.write_text(imported.toml(), "utf-8")
    except OSError as error:
        message = f"{error.filename} cannot be written: {error.strerror}"
        advice = "name a file in another folder with --out"
        raise CommandError(message, code=BAD_INPUT, advice=advice) from None


# Reading a crontab


def read_crontab(
    text: str,
    source: str,
    *,
    system: bool = False,
    timezone: str = "UTC",
    module: str = HANDLERS,
) -> Imported:
    """The jobs of a crontab. `system`: its lines name a user before the command, as those of
    /etc/crontab do. `timezone` is the zone of lines before a CRON_TZ."""
    # As cron does: runs of one line may overlap, and missed slots do not run later.
    defaults = {"overlap": "allow", "misfire": "skip"}
    imported = Imported(source, module, timezone=timezone, defaults=defaults)
    environment: dict[str, str] = {}
    zone, comments = timezone, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped:
            comments = []
        elif stripped.startswith("#"):
            comments.append(stripped.lstrip("#").strip())
        elif assigned := _VARIABLE.match(line):
            name, value = assigned[1].strip("\"'"), assigned[2].strip("\"'")
            if name == _ZONE:
                zone = value
            elif name in _NO_VARIABLES:
                imported.remark(number, stripped, _NO_VARIABLES[name].format(value))
            else:
                environment[name] = value
            comments = []
        else:
            _add(imported, number, stripped, comments, zone, environment, system=system)
            comments = []
    return imported


def _add(
    imported: Imported,
    number: int,
    line: str,
    comments: list[str],
    zone: str,
    environment: dict[str, str],
    *,
    system: bool,
) -> None:
    fields = ("schedule",) if line.startswith("@") else _FIELDS
    count = len(fields)
    parts = line.split(None, count + system)
    if len(parts) <= count + system:
        wanted = (*fields, *(["user"] if system else []), "command")
        imported.leave_out(number, line, f"it has no {', '.join(wanted[len(parts) :])}")
        return
    schedule, command = " ".join(parts[:count]), parts[-1]
    options: dict[str, Any] = {"schedule": schedule}
    if schedule == _AT_START:
        options = {"run_on_start": True}
    elif zone != imported.timezone:
        options["timezone"] = zone
    shell_command, stdin = _split_stdin(command)
    options["description"] = " ".join(comments) or shell_command
    shell, home = environment.get("SHELL", "/bin/sh"), environment.get("HOME")
    arguments = [repr([shell, "-c", shell_command]), repr(environment)]
    arguments += [] if stdin is None else [f"stdin={stdin!r}"]
    folder = 'os.path.expanduser("~")' if home is None else repr(home)
    arguments.append(f"folder={folder}")
    about = f"Line {number}."
    if not imported.add(number, line, _program(shell_command), options, about, arguments):
        return
    if schedule == _AT_START:
        why = "it runs when a worker starts, not when the machine does"
        imported.remark(number, schedule, why)
    if system:
        why = f"the command runs as the worker's user, not as {parts[count]!r}"
        imported.remark(number, parts[count], why)


def _program(command: str) -> str:
    """The name of the program that a command runs: in `cd /srv/app && ./manage.py cleanup` it is
    `manage`."""
    while change := _CHANGES_FOLDER.match(command):
        command = command[change.end() :]
    words = [word for word in command.split() if not word.startswith("-")]
    return Path(words[0]).stem if words else "job"


def _split_stdin(command: str) -> tuple[str, str | None]:
    r"""The command, and what follows the first `%`: the input, with a new line for each further
    `%`. `\%` is the character itself."""
    parts = [part.replace(r"\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].strip(), "\n".join(parts[1:]) if len(parts) > 1 else None


def local_timezone() -> str | None:
    """The zone of this machine, which its cron uses; None if it cannot be found out."""
    linked = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2]
    zone = os.environ.get("TZ", "").removeprefix(":") or linked
    try:
        zone_named(zone)
    except InvalidInput:
        return None
    return zone


# Reading manifests

_RETRIES = 6
"""What Kubernetes has where backoffLimit is left out."""

_OVERLAPS = {"Allow": "allow", "Forbid": "skip", "Replace": "replace"}

_INLINE_ZONE = re.compile(r"\s*(?:CRON_)?TZ=(?P<zone>\S+)\s+(?P<schedule>\S.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^()]+)\))")

Count = Annotated[int, Meta(ge=0)]
Scalar = str | int | float | bool


class _Variable(Struct, frozen=True):
    name: str
    value: Scalar | None = None


class _Container(Struct, frozen=True, rename="camel"):
    image: str | None = None
    command: list[Scalar] = []
    args: list[Scalar] = []
    env: list[_Variable] = []
    working_dir: str | None = None


class _Pod(Struct, frozen=True):
    containers: Annotated[list[_Container], Meta(min_length=1)]


class _Template(Struct, frozen=True):
    spec: _Pod


class _Job(Struct, frozen=True, rename="camel"):
    template: _Template
    backoff_limit: Count = _RETRIES
    active_deadline_seconds: Count | None = None
    ttl_seconds_after_finished: Count | None = None


class _JobTemplate(Struct, frozen=True):
    spec: _Job


class _Spec(Struct, frozen=True, rename="camel"):
    schedule: str
    job_template: _JobTemplate
    time_zone: str | None = None
    suspend: bool = False
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Allow"
    starting_deadline_seconds: Count | None = None
    successful_jobs_history_limit: Count | None = None
    failed_jobs_history_limit: Count | None = None


class _Metadata(Struct, frozen=True):
    name: str
    labels: dict[str, Scalar] = {}


class _CronJob(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec


def read_manifests(text: str, source: str, module: str = HANDLERS) -> Imported:
    """The CronJobs of a file with one or more YAML documents, also within a `kind: List`. A remark
    has the line where its manifest begins."""
    imported = Imported(source, module)
    for line, manifest in _manifests(text, source):
        kind = manifest.get("kind") if isinstance(manifest, Mapping) else "?"
        if kind != "CronJob":
            imported.remark(line, str(kind), "only CronJobs are carried over")
            continue
        try:
            cronjob = msgspec.convert(manifest, _CronJob)
        except msgspec.ValidationError as error:
            imported.leave_out(line, "CronJob", str(error))
            continue
        name = cronjob.metadata.name
        options = _options(cronjob)
        container = cronjob.spec.job_template.spec.template.spec.containers[0]
        arguments, remarks = _call(container)
        about = f"Image {container.image or 'unknown'}."
        if imported.add(line, f"CronJob {name}", name, options, about, arguments):
            for what, why in [*_differences(cronjob, manifest), *remarks]:
                imported.remark(line, f"{name}: {what}", why)
    return imported


def _options(cronjob: _CronJob) -> dict[str, Any]:
    spec, job = cronjob.spec, cronjob.spec.job_template.spec
    zone, schedule = spec.time_zone, spec.schedule
    if zone is None and (inline := _INLINE_ZONE.match(schedule)) is not None:
        zone, schedule = inline["zone"], inline["schedule"]
    limits = (spec.successful_jobs_history_limit, spec.failed_jobs_history_limit)
    labels = {name: str(value) for name, value in cronjob.metadata.labels.items()}
    options = {
        "schedule": schedule,
        "timezone": zone,
        "overlap": _OVERLAPS[spec.concurrency_policy],
        "enabled": False if spec.suspend else None,
        "start_deadline": _seconds(spec.starting_deadline_seconds),
        "retries": job.backoff_limit,
        "timeout": _seconds(job.active_deadline_seconds),
        "history": None if limits == (None, None) else sum(limit or 0 for limit in limits),
        "retention": _seconds(job.ttl_seconds_after_finished),
        "metadata": {"labels": labels} if labels else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _seconds(count: int | None) -> str | None:
    return None if count is None else f"{count}s"


def _differences(cronjob: _CronJob, manifest: Any) -> Iterator[tuple[str, str]]:
    """The fields that mean something else here, or nothing, each with what to know of it."""
    spec, job = cronjob.spec, cronjob.spec.job_template.spec
    if spec.time_zone is None and not _INLINE_ZONE.match(spec.schedule):
        why = "without it Kubernetes uses the controller's zone; UTC is assumed here"
        yield "timeZone", why
    if job.active_deadline_seconds is not None:
        why = "in Kubernetes it limits all retries together; here `timeout` limits each attempt"
        yield "activeDeadlineSeconds", why
    if (spec.successful_jobs_history_limit, spec.failed_jobs_history_limit) != (None, None):
        yield "JobsHistoryLimit", "runs are counted together here, however they ended"
    job_spec = manifest["spec"]["jobTemplate"]["spec"]
    pod = job_spec["template"]["spec"]
    carried = {"name", "image", "command", "args", "env", "workingDir"}
    unknown = [
        *(key for key in job_spec if key in ("parallelism", "completions", "podFailurePolicy")),
        *(key for key in pod if key not in ("containers", "restartPolicy")),
        *(key for key in pod["containers"][0] if key not in carried),
    ]
    if unknown:
        yield ", ".join(unknown), "there is no counterpart"
    if len(pod["containers"]) > 1:
        yield "containers", "only the first container is carried over"


def _call(container: _Container) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments of the call that runs the container's command, without the container; and
    what to know of it."""
    why = "no container is started: the worker needs the programs of the image itself"
    remarks = [("image", why)] if container.image is not None else []
    environment: dict[str, str] = {}

    def expand(text: Scalar, unknown: Callable[[str], None]) -> str:
        """Replace `$(NAME)` as Kubernetes does, which also makes `$$` a `$`."""

        def value(reference: re.Match[str]) -> str:
            name = reference["name"]
            if name is not None and name not in environment:
                unknown(name)
            return "$" if name is None else environment.get(name, reference[0])

        return _REFERENCE.sub(value, str(text))

    for variable in container.env:
        if variable.value is None:
            remarks.append(("env", f"set {variable.name} in the worker's environment"))
        else:
            environment[variable.name] = expand(variable.value, lambda name: None)
    if not container.command:
        why = "the image's own entry point is not known here: write the function"
        return [], [*remarks, ("command", why)]

    def tell(name: str) -> None:
        remarks.append(("command", f"$({name}) is not known here: write its value"))

    words = [expand(word, tell) for word in (*container.command, *container.args)]
    folder = container.working_dir
    in_folder = [] if folder is None else [f"folder={folder!r}"]
    return [repr(words), repr(environment), *in_folder], remarks


def _manifests(text: str, source: str) -> Iterator[tuple[int, Any]]:
    """Each manifest with the line where it begins."""
    try:
        import yaml
    except ImportError:
        raise CommandError(
            "reading YAML needs PyYAML", code=BAD_INPUT, advice=install_advice("kubernetes")
        ) from None
    construct = yaml.SafeLoader("").construct_document

    def expand(node: Any) -> Iterator[tuple[int, Any]]:
        value = construct(node)
        if isinstance(value, Mapping) and value.get("kind") == "List":
            for key, items in node.value:
                if key.value == "items" and items.id == "sequence":
                    for item in items.value:
                        yield from expand(item)
        elif value is not None:  # else an empty document
            yield node.start_mark.line + 1, value

    try:
        for document in yaml.compose_all(text, yaml.SafeLoader):
            yield from expand(document)
    except yaml.YAMLError as error:
        raise CommandError(f"{source} is not valid YAML: {error}", code=BAD_INPUT) from None


# What an import gives: jobs for `mainspring.toml`, functions for their handlers, and remarks


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that was not carried over, or not as it was."""

    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}: {self.why}"


@dataclass(slots=True)
class Imported:
    """The jobs by id, the text of the functions, and what was not carried over."""

    source: str
    module: str = HANDLERS
    """The module of the functions."""
    timezone: str = "UTC"
    name: str = ""
    """The name of the file of jobs: `mainspring apply` removes only jobs of a file with a name."""
    defaults: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def remark(self, line: int, what: str, why: str) -> None:
        self.remarks.append(Remark(line, what, why))

    def leave_out(self, line: int, what: str, why: str) -> None:
        self.remark(line, what, f"the job was left out: {why}")

    def add(
        self,
        line: int,
        what: str,
        program: str,
        options: dict[str, Any],
        about: str,
        arguments: Sequence[str],
    ) -> bool:
        """Add a job, named after its program, whose function calls `run` with these arguments.
        False if `mainspring apply` would refuse it: the job is left out.

        It runs in a process of its own, so that its timeout also ends the command: in a thread the
        command would go on beside the retry."""
        errors = InputErrors()
        with errors:
            zone = options.get("timezone", self.timezone)
            schedules.parse(options.get("schedule", "@daily"), timezone=zone)
        policy = option_names(PolicyOptions)
        with errors:
            Policy.make(**{name: value for name, value in options.items() if name in policy})
        try:
            errors.check()
        except InvalidInput as error:
            self.leave_out(line, what, "; ".join(str(fault) for fault in error.each()))
            return False
        name = _free_name(program, self.jobs)
        handler = {"handler": f"{self.module}:{name}", "isolation": "process"}
        self.jobs[name] = {**options, **handler}
        call = "".join(f"        {argument},\n" for argument in arguments)
        body = f"return run(\n{call}    )" if arguments else "raise NotImplementedError"
        self.functions.append(f"def {name}() -> str:\n    {about!r}\n    {body}\n")
        return True

    def toml(self) -> str:
        lines = [f"# Made by `mainspring import` from {self.source}."]
        lines += _lines({"name": self.name, "timezone": self.timezone})
        if self.defaults:
            lines += ["", "[defaults]", *_lines(self.defaults)]
        for job_id, options in self.jobs.items():
            lines += ["", f"[jobs.{job_id}]", *_lines(options)]
        return "\n".join(lines) + "\n"

    def handlers(self) -> str:
        return "\n\n".join([_HEAD.format(source=self.source).strip() + "\n", *self.functions])


_HEAD = '''
"""Runs the commands of {source}. Made by `mainspring import`: change it as you like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: str | None = None,
    folder: str | None = None,
) -> str:
    """Run a command; its output is the run's result. An exit code other than 0 is a failure."""
    done = subprocess.run(
        command,
        env={{**os.environ, **environment}},
        input=stdin,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = [f"exit code {{done.returncode}}: {{done.stderr.strip()[-3000:]}}"]
        if output := done.stdout.strip()[-3000:]:
            said.append(f"output: {{output}}")
        raise RuntimeError("\\n".join(said))
    return done.stdout[-20_000:]
'''


def _free_name(text: str, taken: Mapping[str, Any]) -> str:
    """A name for a job and its function, made from a text and not taken yet."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60] or "job"
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain in ("run", "os", "subprocess"):
        plain = f"job_{plain}"
    names = chain([plain], (f"{plain}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items()]


def _key(name: str) -> str:
    return name if _PLAIN_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # A text of JSON is one of TOML, but for the escapes of DEL and of pairs of surrogates.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
