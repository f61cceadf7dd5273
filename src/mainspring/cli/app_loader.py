"""Loads the scheduler that `app:scheduler` names: an object in a module, or a function that makes
one."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mainspring.cli.errors import BAD_INPUT, CommandError, Stopped

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler


def load_scheduler(spec: str) -> Scheduler:
    """Import the module (the current folder comes first) and return the scheduler in it."""
    from mainspring.scheduler import Scheduler

    module_name, attribute = _split(spec)
    folder = os.getcwd()
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    module = _import_module(module_name, folder)
    target = _attribute(module, attribute)
    return target if isinstance(target, Scheduler) else _call(spec, target)


def _split(spec: str) -> tuple[str, str]:
    module, _, attribute = spec.partition(":")
    names = (module + "." + attribute).split(".")
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise _refused(
            f"{spec!r} names a file, not a module", f"write {dotted}:{attribute or 'scheduler'}"
        )
    if not all(name.isidentifier() for name in names):
        raise _refused(
            f"{spec!r} is not MODULE:ATTRIBUTE",
            "write app:scheduler for the `scheduler` of app.py",
        )
    return module, attribute


def _import_module(name: str, folder: str) -> ModuleType:
    with _users_code(f"importing {name!r}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                raise
            missing = error.name
    raise _refused(
        f"there is no module {missing!r} in {folder} or on the Python path",
        "run this in the folder of the module, or check its spelling",
    )


def _attribute(module: ModuleType, path: str) -> Any:
    from mainspring.scheduler import Scheduler

    try:
        return attrgetter(path)(module)
    except AttributeError:
        known = [name for name, value in vars(module).items() if isinstance(value, Scheduler)]
        there = f"its schedulers: {', '.join(known)}" if known else "it has no Scheduler"
        raise _refused(f"module {module.__name__!r} has no {path!r}", there) from None


def _call(spec: str, function: Any) -> Scheduler:
    """The scheduler that a function without arguments returns."""
    from mainspring.scheduler import Scheduler
    from mainspring.scheduler.decorator import DecoratedJob

    if isinstance(function, DecoratedJob):  # callable, but calling it would run the job
        raise _refused(f"{spec} is the job {function.id!r}", "name the scheduler it belongs to")
    if isinstance(function, type) or not callable(function):
        raise _no_scheduler(spec, function)
    if inspect.iscoroutinefunction(function):
        raise _refused(f"{spec} is an async function", "name a Scheduler, or a plain function")
    with _users_code(f"{spec}()"):
        result = function()
    if not isinstance(result, Scheduler):
        raise _no_scheduler(f"{spec}()", result)
    return result


_ALLOWED = "name a Scheduler, or a function without arguments that returns one"


@contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Say what failed if the block, which runs the user's code, raises or ends the program."""
    try:
        yield
    except Stopped:
        raise
    except SystemExit as error:
        raise _refused(
            f"{what} ended the program: {_in_words(error)}",
            'put what a script does under `if __name__ == "__main__":`',
        ) from error
    except Exception as error:
        advice = "MAINSPRING_DEBUG=1 shows the traceback"
        raise _refused(f"{what} failed: {_in_words(error)}", advice) from error


def _no_scheduler(what: str, value: Any) -> CommandError:
    if isinstance(value, type):
        kind = f"the class {value.__qualname__}"
    else:
        kind = f"of type {type(value).__module__}.{type(value).__qualname__}"
    return _refused(f"{what} is {kind.replace('builtins.', '')}, not a Scheduler", _ALLOWED)


def _in_words(error: BaseException) -> str:
    """The error with the last line of a file below this folder that it came through."""
    text = " ".join(str(error).split())
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    here = os.path.join(os.getcwd(), "")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(here) and "site-packages" not in frame.filename:
            return f"{words} ({frame.filename}, line {frame.lineno})"
    return words


def _refused(message: str, advice: str) -> CommandError:
    return CommandError(message, code=BAD_INPUT, advice=advice)
