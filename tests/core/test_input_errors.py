"""Errors of several arguments are collected, and raised as one."""

from __future__ import annotations

import traceback

import pytest

from mainspring.core.input_errors import InputErrors
from mainspring.core.policy import Policy
from mainspring.errors import HandlerNotFound, InvalidInput, InvalidSchedule


def test_nothing_is_raised_if_nothing_was_collected() -> None:
    errors = InputErrors()
    with errors:
        pass
    errors.check()
    with errors:
        raise InvalidInput("later", field="queue")
    with pytest.raises(InvalidInput, match="later") as caught:
        errors.check()
    assert [one.field for one in caught.value.each()] == ["queue"]


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


def test_errors_that_carry_others_are_not_counted_twice() -> None:
    errors = InputErrors()
    with errors:
        Policy.make(retries=-1, priority=10)
    with errors:
        raise InvalidInput("third", field="tags")
    with pytest.raises(InvalidInput) as caught:
        errors.check()
    assert [one.field for one in caught.value.each()] == ["retries", "priority", "tags"]


def test_an_unknown_handler_is_raised_alone_or_among_the_others() -> None:
    errors = InputErrors()
    with errors:
        raise HandlerNotFound("mial", ["mail"])
    with pytest.raises(HandlerNotFound):
        errors.check()
    with errors:
        raise InvalidInput("wrong", field="tags")
    with pytest.raises(InvalidInput) as caught:
        errors.check()
    assert [one.field for one in caught.value.each()] == ["tags", "handler"]


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), InputErrors():
        raise KeyError("x")


def test_options_that_do_not_fit_each_other_are_all_reported() -> None:
    with pytest.raises(InvalidInput) as caught:
        Policy.make(concurrency_key="k", delivery="at_most_once", retries=1)
    assert [one.field for one in caught.value.each()] == ["concurrency_key", "retries"]
