"""Default values of policy options: checks them, and merges them with what a job gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mainspring.core.durations import duration
from mainspring.core.input_errors import InputErrors
from mainspring.core.job_options import PolicyOptions, option_names
from mainspring.core.model import Job, Origin
from mainspring.core.policy import Backoff, Delivery, Isolation, Policy
from mainspring.errors import InvalidInput, UnknownOption

_NOT_FOR_WEBHOOKS = ("isolation", "memory_limit")

_NEEDED: dict[str, tuple[str, Any]] = {
    "memory_limit": ("isolation", "process"),
    "concurrency_key": ("concurrency", 1),
    "rate_key": ("rate", "1/s"),
}
"""Options that need another one, and a value of it with which they fit. As a default each counts
for the jobs that have the other one."""


def check_defaults(given: Mapping[str, Any] | None, field: str = "defaults") -> dict[str, Any]:
    """The defaults as they were given, or `InvalidInput` that names each wrong one as
    `defaults.retries`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"{field} is an object of policy options such as {{'retries': 3}}, not {given!r}",
            field=field,
            given=given,
        )
    errors = InputErrors()
    known = option_names(PolicyOptions) - {"after"}
    if unknown := given.keys() - known - {"after"}:
        for name in sorted(map(str, unknown)):
            errors.add(_named(UnknownOption([name], known), name, field))
    if "after" in given:
        why = "after names the jobs that one job follows, so it has no default: give it to the job"
        errors.add(_named(InvalidInput(why), "after", field))
    fit = {beside: value for name, (beside, value) in _NEEDED.items() if name in given}
    try:
        Policy.make(**{**fit, **{name: value for name, value in given.items() if name in known}})
    except InvalidInput as error:
        for one in error.each():
            errors.add(_named(one, one.field or "", field))
    errors.check()
    return dict(given)


def _named(error: InvalidInput, name: str, field: str) -> InvalidInput:
    error.others = ()  # the caller reports each by itself
    error.args = (f"{field}.{name}: {error}",)
    error.field = f"{field}.{name}"
    return error


def merge_policy(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    built_in: Mapping[str, Any],
    errors: InputErrors,
    *,
    longest_timeout: Any = None,
) -> tuple[Policy, dict[str, str]]:
    """The policy of a job, and where each value comes from that is not built in.

    What the job gives wins over the `defaults`, and those win over what is `built_in` for its kind.
    A default that does not fit what the job itself says is left out. What is wrong is added to
    `errors`. `longest_timeout` marks a job that calls an endpoint: it needs a timeout, and takes no
    options that are for handlers.
    """
    used = {name: value for name, value in defaults.items() if name not in given}
    _leave_out_misfits(used, given, longest_timeout)
    base = Policy.make_unchecked(**{**_without(built_in, used), **used})
    more = {}
    if "backoff" in given and "retry_delay" in used:  # a kind alone keeps the default's delay
        more["retry_delay"] = used["retry_delay"]
    policy = Policy.collect(errors, base, **more, **given)
    origins = {field_of(name): str(Origin.DEFAULTS) for name in used}
    origins |= {field_of(name): str(Origin.JOB) for name in given}
    return policy, {f.name: origins[f.name] for f in fields(Policy) if f.name in origins}


def origins_of(job: Job) -> dict[str, Origin] | None:
    """Where each value of a job's policy comes from; None where that is not known."""
    if job.origins is None:
        return None
    return {
        field.name: Origin(job.origins.get(field.name, Origin.BUILT_IN)) for field in fields(Policy)
    }


def field_of(option: str) -> str:
    """The field of a policy that an option sets."""
    return "backoff" if option == "retry_delay" else option


def _without(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in others}


def _leave_out_misfits(
    used: dict[str, Any], given: Mapping[str, Any], longest_timeout: Any
) -> None:
    if given.get("delivery") == Delivery.AT_MOST_ONCE:
        used.pop("retries", None)
    if given.get("retries") and used.get("delivery") == Delivery.AT_MOST_ONCE:
        del used["delivery"]
    own_process = Isolation.PROCESS
    if given.get("delivery") == Delivery.EFFECT_ONCE and used.get("isolation") == own_process:
        del used["isolation"]
    if given.get("isolation") == own_process and used.get("delivery") == Delivery.EFFECT_ONCE:
        del used["delivery"]
    if {**used, **given}.get("isolation") != own_process:
        used.pop("memory_limit", None)
    for key, limit in (("concurrency_key", "concurrency"), ("rate_key", "rate")):
        if {**used, **given}.get(limit) is None:
            used.pop(key, None)
    if isinstance(given.get("backoff"), Backoff | Mapping):
        used.pop("retry_delay", None)
    if longest_timeout is None:
        return
    for name in _NOT_FOR_WEBHOOKS:
        used.pop(name, None)
    if used.get("delivery") == Delivery.EFFECT_ONCE:
        del used["delivery"]
    if "timeout" in used and (
        used["timeout"] is None or duration(used["timeout"]) > longest_timeout
    ):
        del used["timeout"]
