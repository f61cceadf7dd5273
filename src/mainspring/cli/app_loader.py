"""Loads the scheduler that `app:scheduler` names: an object in a module, or a function that makes
one."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
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
    module = _imported(module_name, folder)
    found = _attribute(module, attribute)
    if isinstance(found, Scheduler):
        return found
    return _made(spec, found)


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


def _imported(name: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise _refused(
                f"there is no module {error.name!r} in {folder} or on the Python path",
                "run this in the folder of the module, or check its spelling",
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error
    except Stopped:
        raise
    except SystemExit as error:
        raise _refused(
            f"importing {name!r} ended the program: {_in_words(error)}",
            'put what a script does under `if __name__ == "__main__":`',
        ) from error


def _attribute(module: ModuleType, path: str) -> Any:
    from mainspring.scheduler import Scheduler

    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            known = [n for n, value in vars(module).items() if isinstance(value, Scheduler)]
            there = f"its schedulers: {', '.join(known)}" if known else "it has no Scheduler"
            raise _refused(f"module {module.__name__!r} has no {path!r}", there) from None
    return found


def _made(spec: str, found: Any) -> Scheduler:
    """The scheduler that a function without arguments returns."""
    from mainspring.scheduler import Scheduler
    from mainspring.scheduler.decorator import DecoratedJob

    if isinstance(found, DecoratedJob):  # callable, but calling it would run the job
        raise _refused(f"{spec} is the job {found.id!r}", "name the scheduler it belongs to")
    if isinstance(found, type) or not callable(found):
        raise _not_one(spec, found)
    if inspect.iscoroutinefunction(found):
        raise _refused(f"{spec} is an async function", "name a Scheduler, or a plain function")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise _refused(f"{spec} cannot be called without arguments: {error}", _ALLOWED) from None
    except ValueError:
        pass  # a builtin without a signature: the call shows whether it works
    try:
        made = found()
    except Exception as error:
        raise _refused(f"{spec}() failed: {_in_words(error)}", _DEBUG) from error
    except Stopped:
        raise
    except SystemExit as error:
        raise _refused(f"{spec}() ended the program: {_in_words(error)}", _DEBUG) from error
    if not isinstance(made, Scheduler):
        raise _not_one(f"{spec}()", made)
    return made


_ALLOWED = "name a Scheduler, or a function without arguments that returns one"
_DEBUG = "MAINSPRING_DEBUG=1 shows the traceback"


def _not_one(what: str, found: Any) -> CommandError:
    if isinstance(found, type):
        kind = f"the class {found.__qualname__}"
    else:
        kind = f"of type {type(found).__module__}.{type(found).__qualname__}"
    return _refused(f"{what} is {kind.replace('builtins.', '')}, not a Scheduler", _ALLOWED)


def _broken(name: str, error: Exception) -> CommandError:
    return _refused(f"importing {name!r} failed: {_in_words(error)}", _DEBUG)


def _in_words(error: BaseException) -> str:
    """The error with the place of the user's code that it came from."""
    text = " ".join(str(error).split())
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    return f"{words} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else words


_LIBRARIES = tuple(
    os.path.join(os.path.abspath(folder), "")
    for folder in (
        os.path.dirname(os.path.dirname(__file__)),  # mainspring itself
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def _is_users(filename: str) -> bool:
    """Whether a file is the user's own: neither ours, nor Python's, nor an installed package's."""
    return not filename.startswith("<") and not filename.startswith(_LIBRARIES)


def _refused(message: str, advice: str) -> CommandError:
    return CommandError(message, code=BAD_INPUT, advice=advice)
