"""The public names of the package, as the reference names them."""

from __future__ import annotations

import griffe

import mainspring
import mainspring.errors
import mainspring.schedules
import mainspring.testing
import mainspring.webhooks
from tests.support.doc_examples import ROOT


def public_names() -> set[str]:
    """What programs import, by the path that the reference names it under."""
    names = {
        f"{module.__name__}.{name}"
        for module in (mainspring, mainspring.schedules, mainspring.testing, mainspring.webhooks)
        for name in module.__all__
    }
    # Makers of schedules are described where they belong; errors on a page of their own.
    elsewhere = {f"mainspring.{name}" for name in ("at", "cron", "every", "rrule")}
    elsewhere |= {f"mainspring.{name}" for name in ("GiveUp", "MainspringError", "Retry")}
    return names - elsewhere | {"mainspring.errors"}


def returned_names() -> set[str]:
    """The classes that the methods of Client and Scheduler return, and those of the fields of these
    classes, by the path of the module that defines them. Left out are a store, whose protocol is
    described as a whole, the blocking forms, which have the same methods, and errors."""
    package = griffe.load("mainspring", search_paths=[ROOT / "src"], allow_inspection=False)
    left_out = {
        "mainspring.stores.protocol.Store",
        "mainspring.scheduler.client.BlockingClient",
        "mainspring.scheduler.scheduler.BlockingScheduler",
    }
    found: set[str] = set()
    todo = ["mainspring.scheduler.client.Client", "mainspring.scheduler.scheduler.Scheduler"]
    roots = set(todo)
    while todo:
        path = todo.pop()
        value = package[path.removeprefix("mainspring.")]
        value = value.final_target if value.is_alias else value
        known = value.canonical_path in found or path in left_out
        if known or not value.is_class or path.startswith("mainspring.errors."):
            continue
        found.add(value.canonical_path)
        for name, member in value.members.items():
            if not name.startswith("_") and not member.is_alias:
                todo += _names_in(member)
    return found - roots


def _names_in(member: griffe.Object) -> list[str]:
    kind = getattr(member, "returns" if member.is_function else "annotation", None)
    if not isinstance(kind, griffe.Expr):
        return []
    names = [one for one in kind.iterate(flat=True) if isinstance(one, griffe.ExprName)]
    return [one.canonical_path for one in names if one.canonical_path.startswith("mainspring.")]
