"""What the fields of the API mean, in words: for its description, and so for the page at `/docs`.

Here and not beside each field: a job's fields are the same in three bodies and two documents.
"""

from __future__ import annotations

from typing import Any

__all__ = ["describe"]

_JOB = {
    "id": "Its name in URLs. Made of `name` or of the endpoint's host where it is left out.",
    "_id": "Its name in URLs.",
    "name": "For people; becomes the id where none is given.",
    "description": "What it is for.",
    "tags": "To list by.",
    "metadata": "Whatever you want to keep with it.",
    "schedule": (
        "Cron with 5 to 7 fields, `@daily`, an interval, a date-time or an RRULE. Null: it runs"
        " only when triggered."
    ),
    "scheduleDescription": "The schedule in words.",
    "every": "Instead of `schedule`: an interval.",
    "runAt": "Instead of `schedule`: one moment.",
    "timezone": (
        "Of the schedule, such as `Europe/Berlin`; the scheduler's (UTC, unless it has another)"
        " unless the schedule names one."
    ),
    "jitter": "Each slot's run is put off by up to so much.",
    "endpoint": "The address that is called. It may have templates such as `{{jobId}}`.",
    "method": "POST unless said.",
    "headers": "Of the request. Secret ones are write-only: whoever reads them gets a mask.",
    "secretHeaders": "Headers to encrypt beside `Authorization`, `Cookie` and `X-Api-Key`.",
    "body": (
        "JSON or text, with templates: `{{timestamp}}`, `{{scheduledAt}}`, `{{jobId}}`,"
        " `{{executionId}}`, `{{attempt}}`."
    ),
    "successCodes": 'What is a success: `[200, "202-204"]`. All 2xx unless said.',
    "retryOn": 'Which other answers are retried: `["5xx", 429]`. All unless said.',
    "handler": "Instead of `endpoint`: the name of a Python function that the program registered.",
    "payload": "The handler's arguments.",
    "executionType": "`AT_MOST_ONCE` is never tried again.",
    "enabled": "Whether its slots fire.",
    "retryAttempts": "Tries after the first; 0: none.",
    "retryDelay": "The wait before the first of them.",
    "backoff": "How that wait grows.",
    "timeout": "Of an attempt, by the wall clock.",
    "startDeadline": "A run that has not begun so long after it was due is skipped.",
    "priority": "0 to 9; higher comes first.",
    "queue": "Which workers take it.",
    "concurrency": "At most so many of its runs at once, over all instances.",
    "concurrencyKey": "Jobs of the same key share their limit.",
    "overlap": (
        "A slot that comes while an earlier one's run is unfinished: `skip` it, `queue` it behind,"
        " `replace` the earlier one, or `allow` both."
    ),
    "misfire": "Slots that nobody fired in time: run the newest `once`, `skip` them, or run `all`.",
    "breaker": "After so many failures in a row runs wait, until one that probes succeeds.",
    "after": "Jobs that it comes after: it runs when each of them has succeeded.",
    "rotateSecret": "Sign with a new secret; the former one signs beside it for a day.",
    "owner": "`code`: a program defines it, and only its switch can be changed here.",
    "nextRunAt": "The slot that fires next.",
    "lastRunAt": "When its newest run was started, however that run was made.",
    "createdAt": "When it was made.",
    "updatedAt": "When it was changed last.",
}
_BACKOFF = {
    "kind": "The same wait each time, one that grows by itself, or one that is multiplied.",
    "factor": "By what an exponential wait is multiplied.",
    "cap": "The longest wait.",
    "jitter": "By what part waits are spread; true: a tenth.",
}
_MISFIRE = {
    "kind": "Of the slots that were missed: the newest, none, or all.",
    "grace": "How late a slot may be without being missed.",
    "limit": "Of `all`, at most so many of the newest.",
}
_BREAKER = {
    "failures": "So many in a row open it.",
    "reset": "How long it stays open before one run probes.",
}
_RUN = {
    "id": "Of a slot's run: the job's id, `@` and the slot.",
    "jobId": "Whose run it is.",
    "handler": "What runs it; `webhook` calls the endpoint.",
    "state": "`failed` and `cancelled` ones can be retried.",
    "source": "What made it.",
    "queue": "Which workers take it.",
    "priority": "0 to 9; higher comes first.",
    "attempt": "The number of its last try.",
    "failures": "Failed tries since it was made or retried by hand.",
    "scheduledAt": "The slot, or when it was to run first.",
    "runAt": "When it is due, or was: a retry puts it off.",
    "createdAt": "When it was made.",
    "startedAt": "When its last try began.",
    "finishedAt": "When it ended for good.",
    "duration": "Of the last try, in milliseconds.",
    "worker": "Which process runs it, or ran it last.",
    "error": "Why its last try failed.",
    "reason": "Why it was skipped, cancelled or given up.",
    "cancelRequested": "Its handler was asked to stop.",
    "dedupeKey": "While it lives, no other run of this key is made.",
    "progress": "What its handler tells of how far it is.",
    "after": "Runs that it waits for.",
    "attempts": "Its tries, oldest first; the last 20 are kept.",
    "why": "Why it did not run, or not yet. Lists leave it out.",
}
_ATTEMPT = {
    "number": "From 1 on.",
    "worker": "Which process tried.",
    "startedAt": "When it began.",
    "finishedAt": "When it was over.",
    "outcome": "`lost`: its process died; `released`: it was given back.",
    "error": "Why it failed.",
    "traceback": "Of a handler that raised.",
    "log": "What the handler logged, the end of it.",
    "request": "What was sent, secrets masked.",
    "response": "Status, headers and the beginning of the answer.",
}
_EXECUTION = {
    "_id": "The run's id, `:` and the number of the attempt.",
    "jobId": "Whose attempt it is.",
    "status": "Whether the answer was a success.",
    "startedAt": "When it began.",
    "completedAt": "When it was over.",
    "duration": "In whole milliseconds.",
    "responseCode": "Null where no answer came.",
    "responseBody": "The beginning of the answer.",
    "errorMessage": "Why it failed.",
    "attempt": "The number of the try, from 1 on.",
    "scheduledAt": "The slot.",
}
_WORDS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("JobBody", "JobUpdateBody", "Job", "JobDocument", "ChangedJob"), _JOB),
    **dict.fromkeys(("BackoffBody", "BackoffDocument"), _BACKOFF),
    **dict.fromkeys(("MisfireBody", "MisfireDocument"), _MISFIRE),
    **dict.fromkeys(("BreakerBody", "BreakerDocument"), _BREAKER),
    "Run": _RUN,
    "Attempt": _ATTEMPT,
    "Execution": _EXECUTION,
    "TriggerBody": {"payload": "Instead of the request's body, or of the handler's arguments."},
    "PreviewBody": {
        **{name: _JOB[name] for name in ("schedule", "every", "runAt", "timezone")},
        "count": "How many slots.",
        "after": "From when on; now unless said.",
    },
    "MatchBody": {
        "job": "Of this job.",
        "state": "In this state, or in one of these.",
        "since": "Made then or later.",
        "until": "Made before then.",
    },
    "JobMatchBody": {
        "tag": "With this tag.",
        "enabled": "Switched on, or off.",
        "search": "With this in the id or the description.",
    },
    "RunsBulkBody": {
        "action": "What is done with each.",
        "ids": "These runs.",
        "match": "Or all that fit; `{}`: every run.",
        "limit": "At most so many; `more` in the answer says whether there were more.",
    },
    "JobsBulkBody": {
        "action": "What is done with each.",
        "jobs": "To `create`: each is what `POST /api/jobs` takes.",
        "ids": "These jobs.",
        "match": "Or all that fit; `{}`: every job.",
    },
    "KeyBody": {
        "name": "Whose key it is.",
        "scope": "`write` also reads, `admin` also makes and revokes keys.",
        "expiresIn": "After so long it opens nothing; null: never.",
    },
    "ProblemDocument": {
        "success": "False.",
        "error": "One message that a person can act on.",
        "type": "Which problem it is, for programs.",
        "title": "The same for every one of its type.",
        "status": "The status of the answer.",
        "detail": "As `error`.",
        "instance": "The path that was asked for.",
        "errors": "Each wrong field, and what is wrong with it.",
    },
}


def describe(schemas: dict[str, Any]) -> None:
    """Put its words to every field that has none of its own."""
    for name, words in _WORDS.items():
        for field, schema in schemas.get(name, {}).get("properties", {}).items():
            if field in words:
                schema.setdefault("description", words[field])
