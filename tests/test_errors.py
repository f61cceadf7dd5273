"""The tree of errors: as it is drawn, and what each error carries."""

from __future__ import annotations

import inspect
import re
import traceback
from datetime import timedelta

import pytest

from mainspring import errors
from mainspring.core.policy import Policy
from mainspring.errors import InputErrors, InvalidInput, InvalidSchedule

TREE = inspect.getdoc(errors) or ""


def all_errors() -> list[type[BaseException]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    ]


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in TREE.splitlines():
        if match := re.match(r"^([\s│├└─]*)([A-Z]\w+)(?:\s|$)", line):
            indent, name = match.groups()
            if not hasattr(errors, name) or (not indent and path):
                continue
            depth = len(indent) // 4
            path[depth - 1 :] = [name]
            if depth > 1:
                drawn[name] = path[depth - 2]
    real = {
        kind.__name__: kind.__bases__[0].__name__
        for kind in all_errors()
        if issubclass(kind, errors.MainspringError) and kind is not errors.MainspringError
    }
    assert drawn == real


def test_only_what_steers_a_run_is_outside_the_root() -> None:
    outside = {e for e in all_errors() if not issubclass(e, errors.MainspringError)}
    assert outside == {errors.GiveUp, errors.Retry, errors.RetryNotBefore, errors.Snooze}


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidPayload("x"), ValueError),
        (errors.InvalidArguments("x"), TypeError),
        (errors.JobNotFound("x"), LookupError),
        (errors.RunTimeout("x"), TimeoutError),
    ],
)
def test_python_s_own_errors_catch_them(error: Exception, builtin: type[Exception]) -> None:
    assert isinstance(error, builtin)


def test_errors_carry_their_facts() -> None:
    missing = errors.HandlerNotFound("mail", ["a", "b"])
    assert (missing.handler, str(missing)) == (
        "mail",
        "no handler 'mail' is registered here (registered: a, b)",
    )
    assert "registered: none" in str(errors.HandlerNotFound("mail", []))
    assert str(errors.HandlerNotFound("mial", ["mail"])).endswith("did you mean 'mail'?")
    assert errors.RunNotFound("r1").run_id == "r1"
    assert errors.JobNotFound("j1").job_id == "j1"
    owned = errors.JobOwnedByCode("j1")
    assert (owned.job_id, "change it there" in str(owned)) == ("j1", True)
    assert errors.InvalidSchedule("no", part="hour").part == "hour"
    assert errors.Retry(after=timedelta(seconds=5)).after == timedelta(seconds=5)
    assert str(errors.Retry()) == "the handler asked for another try"


# Errors of several arguments are collected, and raised as one


def test_the_first_error_is_raised_with_the_others() -> None:
    errors = InputErrors()
    with errors:
        raise InvalidSchedule("first")
    with errors:
        raise InvalidInput("second", field="queue")
    with pytest.raises(InvalidSchedule, match="first") as caught:
        errors.check()
    assert [(one.field, str(one)) for one in caught.value.each()] == [
        ("schedule", "first"),
        ("queue", "second"),
    ]
    shown = traceback.format_exception(caught.value)
    assert shown[-1] == "Also: second\n"  # a program that catches nothing shows all of them


def test_options_that_do_not_fit_each_other_are_all_reported() -> None:
    with pytest.raises(InvalidInput) as caught:
        Policy.make(concurrency_key="k", delivery="at_most_once", retries=1)
    assert [one.field for one in caught.value.each()] == ["concurrency_key", "retries"]
