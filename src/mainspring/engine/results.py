"""Makes the result of a handler storable.

A handler that returns has done its part. A result that is not JSON, or too large, must not fail the
run: the run would be retried, and the handler called again. Such a result is kept as marked text.
"""

from __future__ import annotations

from typing import Any

from mainspring.core import codec
from mainspring.core.context import RunContext


def storable_result(result: Any, context: RunContext) -> Any:
    """The result itself where it can be stored, else `{"kept_as": "text", "repr": "…"}`.

    A marked result comes with a warning in the attempt's log, which names the job. Called where
    the handler runs: a `__repr__` of the program must not block the engine's loop.
    """
    if result is None:
        return None
    try:
        codec.encode(result, what="result")
    except BaseException as error:  # the result's own methods may raise anything
        context.log.warning(
            "job %s returned a result that is kept as text only: %s",
            context.job_id,
            _describe(error),
        )
        return codec.kept_as_text(result)
    return result


def _describe(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__
