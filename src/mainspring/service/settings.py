"""The settings of the service: from the command line, environment variables and `.env`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from mainspring.core.durations import duration
from mainspring.core.policy import memory_size
from mainspring.engine.settings import read_prune_every
from mainspring.errors import InvalidInput

KIB = 1024
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", re.IGNORECASE | re.ASCII)


def _read_by(read: Callable[[Any], Any], allowed: str) -> BeforeValidator:
    """Reads a setting with a reader of the library. The error says what is allowed."""

    def validate(given: Any) -> Any:
        try:
            return None if given is None else read(given)
        except InvalidInput:
            raise ValueError(allowed) from None

    return BeforeValidator(validate)


Span = _read_by(duration, "a span with its unit, such as 12h or 30d")
PruneEvery = _read_by(read_prune_every, "1 second to 1 day, with its unit, such as 10m")
Size = _read_by(memory_size, "a number of bytes, or a size such as 512MiB or 2GB")


def _hosts(given: str) -> str:
    """Refuse names that no Host can match: they would make every request fail."""
    for host in filter(None, map(str.strip, given.split(","))):
        name, _ = _name_and_port(host)
        if not _NAME.fullmatch(name) and not _is_address(name):
            raise ValueError(
                "a list of names such as jobs.example.org, with commas between them:"
                " each in full, without scheme or *, with a port only if it is not 80 or 443"
            )
    return given


def _name_and_port(host: str) -> tuple[str, int | None]:
    name, _, port = host.lower().rpartition(":")
    if name and not _is_address(host) and port.isascii() and port.isdigit():
        return name.strip("[]"), int(port)
    return host.lower(), None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _true_or_false(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if str(given).lower() in ("true", "false"):
        return str(given).lower() == "true"
    raise ValueError("true or false")


class ServiceSettings(BaseSettings):
    """The names are those of the environment variables, in lower case."""

    model_config = SettingsConfigDict(env_file=".env", extra="ignore", populate_by_name=True)

    host: str = "127.0.0.1"
    port: int = Field(3000, ge=0, le=65535)
    scheduler_poll_interval: int = Field(1000, ge=10, le=60_000)
    max_concurrent_jobs: int = Field(10, ge=0, le=10_000)
    job_retry_attempts: int = Field(3, ge=0, le=1000)
    job_retry_delay: int = Field(5000, ge=0, le=86_400_000)
    rate_limit: float = Field(100, gt=0, le=1_000_000, allow_inf_nan=False)
    """Requests a second that one key may make, with bursts of twice as many."""
    body_limit: int = Field(1024 * KIB, ge=KIB, le=64 * 1024 * KIB)
    header_timeout: int = Field(10_000, ge=100, le=600_000)
    """How long a connection may take to send the headers of a request."""
    max_connections: int = Field(1000, ge=10, le=1_000_000)
    allowed_hosts: Annotated[str, AfterValidator(_hosts)] = ""
    """Other names than loopback's that requests may have as Host, with commas: those of a proxy.
    With them an API key is needed. A name may have a port (jobs.example.org:8443): then pages of
    that port count as this service's own. Without one, those of ports 80 and 443 do."""
    drain_timeout: int = Field(30_000, ge=0, le=3_600_000)
    retention: Annotated[timedelta, Span] = timedelta(days=30)
    """How long finished runs are kept, with a unit as in 30d. A bare number is refused: it would be
    seconds, and somebody who means days would lose the history."""
    history: int | None = Field(None, ge=0)
    """How many finished runs of each job are kept."""
    prune_every: Annotated[timedelta | None, PruneEvery] = None
    """How often finished runs are deleted."""
    memory_limit: Annotated[int | None, Size] = None
    """At so much memory, as in 1GB, the process is replaced."""
    leader_election: Annotated[bool, BeforeValidator(_true_or_false)] = True
    """Whether the store elects a leader among all processes. False: each acts as if it led."""

    @classmethod
    def read(cls, **given: Any) -> Self:
        """The given values, then those of the environment, then those of `.env`. None counts as not
        given."""
        chosen = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**chosen)
        except ValidationError as error:
            raise InvalidInput("; ".join(map(_message, error.errors()))) from None

    @property
    def hosts(self) -> dict[str, int | None]:
        """The allowed names, each with its port if one was given."""
        hosts = filter(None, map(str.strip, self.allowed_hosts.split(",")))
        return dict(map(_name_and_port, hosts))

    @property
    def poll(self) -> timedelta:
        return timedelta(milliseconds=self.scheduler_poll_interval)

    @property
    def header_wait(self) -> timedelta:
        return timedelta(milliseconds=self.header_timeout)

    @property
    def drain(self) -> timedelta:
        return timedelta(milliseconds=self.drain_timeout)


MOUNTED = ("rate_limit", "body_limit", "job_retry_attempts", "job_retry_delay")


class MountedSettings(ServiceSettings):
    """The settings of an API that is mounted in a program: the given values alone. The program may
    use `PORT` and `RATE_LIMIT` for something else."""

    @classmethod
    def read(cls, **given: Any) -> Self:
        for name in given:
            if name not in MOUNTED:
                raise InvalidInput(f"asgi() takes auth, {', '.join(MOUNTED)}, not {name!r}")
        return super().read(**given)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *sources: PydanticBaseSettingsSource,
        **more: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _message(error: Any) -> str:
    name = str(error["loc"][0]).upper()
    context = error.get("ctx", {})
    if error["type"].startswith("int_"):
        allowed = "a whole number"
    elif error["type"].startswith(("float_", "finite_")):
        allowed = "a number"
    elif "gt" in context:
        allowed = f"more than {context['gt']:g}"
    elif "ge" in context:
        allowed = f"{context['ge']} or more"
    elif "le" in context:
        allowed = f"at most {context['le']:.0f}"
    else:
        allowed = str(context.get("error", error["msg"]))
    return f"{name} is {allowed}, not {error['input']!r}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket bound to that host."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
