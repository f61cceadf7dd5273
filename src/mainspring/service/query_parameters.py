"""What must not be ignored: unknown query parameters, as a filter that is not one would give
everything and one of two contradicting values would be dropped; and a condition (`If-Match`) where
none is looked at."""

from __future__ import annotations

from collections import Counter
from typing import get_args, get_origin

from fastapi import Request
from fastapi.routing import APIRoute

from mainspring.service.problems import FieldError, Problem

__all__ = ["check_query"]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

DRY_RUN = "dryRun"
"""May be said, as false, where there is none; the guard sees to that."""

WATCHED = ("/api/observability/health", "/api/v1/health")


async def check_query(request: Request) -> None:
    route = request.scope["route"]
    if request.method not in SAFE and "if-match" in request.headers:
        _check_condition(route)
    if not request.query_params or not route.path.startswith("/api/") or route.path in WATCHED:
        return  # probes and pages may be asked with whatever a monitor or a browser adds
    given = Counter(name for name, _ in request.query_params.multi_items())
    if faults := _faults(_known(route), given):
        raise Problem.of_fields(faults)


def _check_condition(route: APIRoute) -> None:
    """A condition that the route does not look at: what it forbids might be done."""
    if not any(one.alias == "If-Match" for one in route.dependant.header_params):
        why = "If-Match is for one job (its ETag), and is not looked at here: nothing was done"
        raise Problem(422, why)


def _known(route: APIRoute) -> dict[str, bool]:
    """The names that the route takes, and whether it takes several of each."""
    return {one.alias: _several(one.field_info.annotation) for one in route.dependant.query_params}


def _several(annotation: object) -> bool:
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


def _faults(known: dict[str, bool], given: Counter[str]) -> list[FieldError]:
    told = f"those are {', '.join(known)}" if known else "there are none here"
    faults = []
    for name, times in given.items():
        if name not in known and name != DRY_RUN:
            faults.append(FieldError(name[:100], f"there is no such parameter; {told}"))
        elif times > 1 and not known.get(name):
            faults.append(FieldError(name[:100], f"is given {times} times: say it once"))
    return faults
