"""The store's clock: the machine's wall clock, corrected when somebody sets it.

Leases are stored as wall times, so that people can read them. Setting the wall clock would lengthen
or end them all. Therefore the database holds the offset between the wall clock and a clock that
cannot be set: the time since boot, which is the same in every process of the machine. A transaction
that finds another offset first moves every lease, every note with a ttl (such as a leader's term)
and every retry by the difference, so that they keep their length. A run that is due stays due when
the clock is set back. Schedules and delays name wall times, and follow the new time.

A run that was snoozed, or put off by its breaker, counts as a retry: its token says that it was
claimed before.

A retry is moved only if its last attempt began (or, if none counts, it was made) at a time that
this boot has seen. A machine without a battery clock starts in 1970 and is set later: retries of
the boot before have the right time.

After a reboot all leases of the boot before have lapsed, because no worker survives it. A container
may have another boot id without a reboot: then the offset is still the same.
"""

from __future__ import annotations

import logging
import sqlite3
from datetime import timedelta

from mainspring.core.clock import Clock, SteadyClock
from mainspring.core.durations import humanize

log = logging.getLogger("mainspring")

_READ = "SELECT value FROM mainspring_meta WHERE name = ?"
_WRITE = "INSERT OR REPLACE INTO mainspring_meta VALUES (?, ?)"
_FORGET = "DELETE FROM mainspring_meta WHERE name = ?"
_BOOT, _OFFSET = "boot", "wall offset"
_LATEST = "latest wall time"
"""The latest time that the wall clock had in this boot before it was set; none if it never was."""

_LAPSE_LEASES = (
    "UPDATE mainspring_runs SET lease_until = min(lease_until, ?) WHERE state = 'running'"
)
_LAPSE_NOTES = """
UPDATE mainspring_notes
SET expires_at = min(expires_at, :now + CASE kind WHEN 'mainspring.term' THEN 0 ELSE ttl END)
WHERE ttl IS NOT NULL
"""
"""A leader's term ends with its machine. Other notes (the starts that a rate limit counts) last on,
but for no longer than they were meant to: this boot may begin in 1970, and set its clock later."""
_CLAIMED_LATER = (
    "SELECT EXISTS (SELECT 1 FROM mainspring_runs WHERE state = 'running' AND started_at > ?)"
)
_MOVE_RETRIES = """
UPDATE mainspring_runs SET run_at = run_at + :step
WHERE state = 'pending' AND token > 0 AND run_at > :before
    AND coalesce(started_at, created_at) <= :latest
"""
_MOVE_DUE = """
UPDATE mainspring_runs SET run_at = run_at + :step
WHERE state = '{}' AND run_at <= :before AND run_at > :after
"""
_MOVES = (
    "UPDATE mainspring_runs SET lease_until = lease_until + :step WHERE state = 'running'",
    "UPDATE mainspring_notes SET expires_at = expires_at + :step WHERE ttl IS NOT NULL",
    *(_MOVE_DUE.format(state) for state in ("pending", "running", "waiting")),
    _MOVE_RETRIES,  # last, because the others would take the retries that it moves for due runs
)


class StoreClock:
    """Gives the store's time in microseconds. A time may be compared only with leases that were
    written under the same offset. Use `read` in a snapshot and `follow` in a write transaction."""

    def __init__(self, clock: Clock) -> None:
        self._steady = SteadyClock(clock)
        self._offset = 0
        """The offset of this process's last transaction. Used only in the writer's thread."""

    def now_us(self) -> int:
        """The time by the offset of the last transaction. A transaction must confirm what is
        decided by it."""
        return self._steady.elapsed_us() + self._offset

    def stepped(self) -> bool:
        """Whether somebody has set the wall clock, and no transaction has moved the leases yet."""
        return bool(self._steady.step_from(self._offset))

    def begin(self, connection: sqlite3.Connection) -> None:
        """Compare the stored boot and offset with this machine's, when the file is opened."""
        boot = self._steady.boot
        if not boot:
            return
        known = _value(connection, _BOOT)
        if known == boot:
            self.follow(connection)
            return
        while (offset := self._steady.wall_offset_us()) is None:
            pass
        self._offset = offset
        if known is not None:
            # A live leader renews its term.
            connection.execute(_LAPSE_NOTES, {"now": self.now_us()})
            if self._is_the_same_boot(connection):
                self.follow(connection)
                return
            connection.execute(_LAPSE_LEASES, (self.now_us(),))
        connection.execute(_FORGET, (_LATEST,))
        connection.execute(_WRITE, (_BOOT, boot))
        connection.execute(_WRITE, (_OFFSET, self._offset))

    def _is_the_same_boot(self, connection: sqlite3.Connection) -> bool:
        """Whether this is the boot of the stored offset, although the boot id differs. Two boots of
        a machine that always starts in 1970 may have the same offset. Then running runs were
        claimed later than now, or their leases lapse by themselves."""
        stored = int(_value(connection, _OFFSET) or 0)
        if abs(self._offset - stored) >= self._steady.STEP_US:
            return False
        (later,) = connection.execute(_CLAIMED_LATER, (self.now_us(),)).fetchone()
        return not later

    def read(self, connection: sqlite3.Connection) -> int:
        offset = _value(connection, _OFFSET) if self._steady.boot else 0
        return self._steady.elapsed_us() + int(offset or 0)

    def follow(self, connection: sqlite3.Connection) -> int:
        """Correct for a step of the wall clock, if there was one, and return the time."""
        if not self._steady.boot:
            return self._steady.elapsed_us()
        self._offset = int(_value(connection, _OFFSET) or 0)
        step = self._steady.step_from(self._offset)
        if step:
            before = self.now_us()
            latest = max(before, int(_value(connection, _LATEST) or 0))
            times = {"step": step, "before": before, "after": before + step, "latest": latest}
            for statement in _MOVES:
                connection.execute(statement, times)
            self._offset += step
            connection.execute(_WRITE, (_OFFSET, self._offset))
            connection.execute(_WRITE, (_LATEST, latest))
            log.warning(
                "this machine's clock was set %s by %s. Leases and retries keep their length;"
                " schedules follow the new time",
                "forward" if step > 0 else "back",
                humanize(timedelta(microseconds=abs(step))),
            )
        return self.now_us()


def _value(connection: sqlite3.Connection, name: str) -> int | str | None:
    row = connection.execute(_READ, (name,)).fetchone()
    return None if row is None else row[0]
