"""The public names of the package, as the reference names them."""

from __future__ import annotations

import mainspring
import mainspring.errors
import mainspring.schedules
import mainspring.testing
import mainspring.webhooks


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
