"""Jobs as data: `mainspring.toml`, `Scheduler(jobs={…})`, and `apply_jobs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, Scheduler, State
from mainspring.core.model import Owner
from mainspring.errors import InvalidInput, JobExists, JobOwnedByFile, StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store
from mainspring.testing import FaultyStore, Injection
from tests.support.engine import EventRecorder

FILE = """
name = "shop"
timezone = "Europe/Berlin"

[defaults]
retries = 3
timeout = "5m"

[jobs.nightly]
schedule = "0 2 * * *"
handler = "shop_handlers:nightly"
payload = { days = 30 }
timeout = "none"
tags = ["reports"]
metadata = { team = "core" }

[jobs.ping]
schedule = "5m"
url = "https://example.org/ping"
backoff = { kind = "fixed", delay = "9s" }
enabled = false
"""
CODE = "def nightly(days: int) -> str:\n    return f'{days} days'\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "shop_handlers.py").write_text(CODE)
    path = list(sys.path)
    job_file = tmp_path / "jobs.toml"
    job_file.write_text(FILE)
    yield job_file
    sys.path[:] = path
    sys.modules.pop("shop_handlers", None)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | Store:
    return MemoryStore() if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def ids(client: Client) -> list[str]:
    return [job.id for job in (await client.list_jobs()).items]


async def test_file_is_applied_again_and_again(file: Path, store: Any) -> None:
    async with Client(store) as client:
        dry = await client.apply_jobs(file, dry_run=True)
        assert ([job.id for job in dry.added], await ids(client)) == (["nightly", "ping"], [])
        events = EventRecorder(client, "job.*")
        first = await client.apply_jobs(file)
        stored = {job.id: job.version for job in (await client.list_jobs()).items}
        assert {job.id: job.version for job in first.added} == stored
        await events.until("job.created", len(stored))
        assert events.names == ["job.created"] * len(stored)
        assert [job.id for job in first.added] == ["nightly", "ping"]
        nightly, ping = (await client.list_jobs()).items
        assert (nightly.owner, nightly.file, nightly.handler) == (
            Owner.FILE,
            "shop",
            "shop_handlers:nightly",
        )
        assert nightly.schedule is not None
        assert nightly.schedule.timezone == "Europe/Berlin"
        assert (nightly.policy.retries, nightly.policy.timeout) == (3, None)
        assert nightly.origins == {"retries": "defaults", "timeout": "job"}
        assert (ping.enabled, ping.policy.timeout) == (False, timedelta(minutes=5))
        assert ping.policy.backoff.delay == timedelta(seconds=9)
        again = await client.apply_jobs(file)
        assert [job.id for job in again.unchanged] == ["nightly", "ping"]
        assert (await client.get_job("nightly")).version == nightly.version
        await client.add_job("mine", handler="other")
        await client.resume_job("ping")
        text = FILE.replace('"5m"\nurl', '"10m"\nurl').replace("[jobs.nightly]", "[jobs.daily]")
        write(file, text)
        third = await client.apply_jobs(file)
        assert [job.id for job in third.added] == ["daily"]
        assert [job.id for job in third.removed] == ["nightly"]
        [changed] = third.changed
        assert [(d.field, d.old, d.new) for d in changed.differences] == [
            ("schedule", "5 minutes", "10 minutes")
        ]
        assert await ids(client) == ["daily", "mine", "ping"]
        assert (await client.get_job("ping")).enabled is True  # as the operator left it


async def test_signing_secret_stays_over_applies_and_starts(file: Path, store: Any) -> None:
    async with Client(store) as client:
        await client.apply_jobs(file)
        first = (await client.get_job("ping")).webhook
        await client.apply_jobs(file)
        assert (await client.get_job("ping")).webhook == first
    async with Scheduler(store, jobs=file) as scheduler:
        assert (await scheduler.get_job("ping")).webhook == first


async def test_job_of_a_file_can_only_be_paused_resumed_and_triggered(file: Path) -> None:
    async with Client("memory://") as client:
        await client.apply_jobs(file)
        with pytest.raises(JobOwnedByFile, match="is defined in the file 'shop'"):
            await client.update_job("nightly", retries=1)
        with pytest.raises(JobOwnedByFile):
            await client.remove_job("nightly")
        assert (await client.pause_job("nightly")).enabled is False
        await client.resume_job("nightly")
        assert (await client.trigger("nightly")).state is State.PENDING
        await client.remove_job("nightly", force=True)


async def test_files_of_other_names_and_other_owners_keep_their_jobs(
    file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "billing.toml"
    write(other, '[jobs.bill]\nhandler = "later"\n[jobs.ping]\nhandler = "later"\n')
    async with Client("memory://") as client:
        await client.add_job("bill", handler="later")
        await client.apply_jobs(file)
        message = r"jobs\.bill: there is a job 'bill' already, which was made through the API"
        with pytest.raises(JobExists, match=message):
            await client.apply_jobs(other)
        await client.remove_job("bill")
        with pytest.raises(JobExists, match="'ping' already, which is defined in the file 'shop'"):
            await client.apply_jobs(other)
        assert await ids(client) == ["nightly", "ping"]
        taken = await client.apply_jobs(other, take_over=True)
        assert [change.job.id for change in taken.changed] == ["ping"]
        assert (await client.get_job("ping")).file == "billing"
        write(file, FILE.partition("[jobs.ping]")[0])
        assert (await client.apply_jobs(file)).removed == []
        assert await ids(client) == ["bill", "nightly", "ping"]


async def test_file_that_states_no_name_removes_nothing(tmp_path: Path, store: Any) -> None:
    first, second = (tmp_path / folder / "mainspring.toml" for folder in ("one", "two"))
    for file, text in ((first, '[jobs.a]\nhandler = "later"\n'), (second, "")):
        file.parent.mkdir()
        write(file, text)
    async with Client(store) as client:
        await client.apply_jobs(first)
        applied = await client.apply_jobs(second)
        assert (applied.removed, [job.id for job in applied.kept]) == ([], ["a"])
        assert await ids(client) == ["a"]
        second.write_text('name = "mainspring"\n')
        assert [job.id for job in (await client.apply_jobs(second)).removed] == ["a"]


async def test_handler_module_that_exits_is_an_error(file: Path) -> None:
    file.with_name("shop_handlers.py").write_text("import sys\nsys.exit(0)\n")
    async with Client("memory://") as client:
        with pytest.raises(InvalidInput, match="importing 'shop_handlers' failed: SystemExit: 0"):
            await client.apply_jobs(file)


async def test_start_refuses_to_take_a_job_from_its_owner(file: Path) -> None:
    store = MemoryStore()
    async with Client(store) as client:
        await client.add_job("ping", webhook="https://example.org/mine")
    with pytest.raises(JobExists, match="apply --take-over"):
        await Scheduler(store, jobs=file).start()


async def test_scheduler_runs_the_jobs_of_a_file(file: Path) -> None:
    async with Scheduler("memory://", jobs=file) as scheduler:
        run = await scheduler.trigger("nightly")
        assert (await scheduler.wait(run.id, 10)).result == "30 days"
        assert (await scheduler.get_job("nightly")).owner is Owner.FILE


async def test_scheduler_takes_jobs_as_a_mapping() -> None:
    jobs = {"tick": {"schedule": "1h", "handler": "work", "retries": 2}}
    scheduler = Scheduler("memory://", workers=0, defaults={"queue": "slow"}, jobs=jobs)
    async with scheduler:
        job = await scheduler.get_job("tick")
        assert (job.owner, job.file) == (Owner.CODE, None)
        assert (job.policy.retries, job.policy.queue) == (2, "slow")
    with pytest.raises(InvalidInput, match=r"^jobs\.tick\.retries: retries is 0 or more"):
        Scheduler("memory://", workers=0, jobs={"tick": {"handler": "work", "retries": -1}})
    with pytest.raises(InvalidInput, match="no handler 'work' is registered here"):
        Scheduler("memory://", jobs={"tick": {"handler": "work"}})


BAD = """nam = "x"
timezone = "Europe/Berln"
[defaults]
retrys = 3
[jobs.one]
cron = "* * * * *"
handler = "later"
[jobs.two]
url = "https://example.org"
webhook = "https://example.org"
"""
WORSE = """[jobs.one]
schedule = "61 * * * *"
handler = "shop_handlers:nightly"
retries = "three"
payload = { dayz = 3 }
[jobs.two]
handler = "later"
backoff = { kind = "fixd" }
[jobs."three four"]
handler = "later"
"""


WORKFLOW = """
[jobs.a]
handler = "later"
after = ["c"]
[jobs]
b = { handler = "later", after = ["a"] }
c = { handler = "later", after = ["b"] }
[jobs.u]
handler = "later"
after = ["nosuch", "a"]
[jobs.v]
after = ["neither"]
handler = "later"
[jobs.w]
schedule = "2020-01-01T00:00:00Z"
handler = "later"
"""


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            BAD,
            {"nam", "timezone", "defaults.retrys", "jobs.one.cron", "jobs.two.url"},
        ),
        (
            WORSE,
            {
                *("jobs.one.schedule", "jobs.one.retries", "jobs.one.payload"),
                *("jobs.two.backoff", "jobs.three four.id"),
            },
        ),
        ('[jobs.x]\nhandler = "shop_handlers:nope"\n', {"jobs.x.handler"}),
        ('[jobs.x]\nhandler = "no_such_module:run"\n', {"jobs.x.handler"}),
        (
            '[jobs.x.webhook]\nurl = "https://a.example"\nheaders = { X = "${NOT_SET_HERE}" }\n',
            {"jobs.x.webhook.headers.X"},
        ),
        ('[jobs.x]\nurl = "https://${HOME}.example"\n', {"jobs.x.url"}),
        (
            '[jobs.x.webhook]\nurl = "https://a.example"\nbody = { a = ["${HOME}"] }\n',
            {"jobs.x.webhook.body"},
        ),
        ('[jobs]\nx = "later"\n', {"jobs.x"}),
        (
            WORKFLOW,
            {"jobs.a.after", "jobs.u.after", "jobs.v.after", "jobs.w.schedule"},
        ),
        ("timezone = 5\n", {"timezone"}),
        ('[jobs.x]\nhandler = "later"\ndescription = 5\n', {"jobs.x.description"}),
        ('[jobs.x]\nhandler = "shop_handlers:nightly"\npayload = 5\n', {"jobs.x.payload"}),
        ('prune_every = "2d"\n', {"prune_every"}),
        ('[jobs.x]\nschedule = "5m"\nurl = "ftp://a.example"\n', {"jobs.x.url"}),
    ],
)
async def test_every_error_names_file_and_key_and_nothing_is_applied(
    file: Path, text: str, places: set[str]
) -> None:
    write(file, text)
    async with Client("memory://") as client:
        with pytest.raises(InvalidInput) as refusal:
            await client.apply_jobs(file)
        errors = [str(error) for error in refusal.value.each()]
        for place in places:
            assert any(error.startswith(f"{file}: {place}: ") for error in errors), (place, errors)
        assert len(errors) == len(places), errors
        assert await ids(client) == []


async def test_errors_of_the_order_at_a_start_name_the_place(file: Path) -> None:
    write(
        file,
        '[jobs.x]\nhandler = "shop_handlers:nightly"\nafter = ["nosuch"]\npayload = { days = 1 }\n',
    )
    with pytest.raises(InvalidInput) as refusal:
        await Scheduler("memory://", jobs=file).start()
    assert str(refusal.value).startswith(f"{file}: jobs.x.after: job 'x' comes after")
    jobs = {"x": {"handler": "later", "after": ["y"]}, "y": {"handler": "later", "after": ["x"]}}
    with pytest.raises(InvalidInput, match=r"^jobs\.x\.after: job 'x' would come after itself"):
        await Scheduler("memory://", workers=0, jobs=jobs).start()


async def test_job_that_the_file_dropped_but_others_come_after_is_named(file: Path) -> None:
    text = (
        'name = "shop"\n[jobs.a]\nhandler = "later"\n[jobs.b]\nhandler = "later"\nafter = ["a"]\n'
    )
    write(file, text)
    async with Client("memory://") as client:
        await client.apply_jobs(file)
        write(file, text.replace("[jobs.a]", "[jobs.c]"))
        with pytest.raises(InvalidInput) as refusal:
            await client.apply_jobs(file)
        assert str(refusal.value).startswith(
            f"{file}: jobs.b.after: job 'b' comes after 'a', and that job is no longer"
        )
        assert await ids(client) == ["a", "b"]


def test_job_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\.1: a job's id is a text, not 1"):
        Scheduler("memory://", workers=0, jobs={1: {"handler": "later"}})  # type: ignore[dict-item]


async def test_byte_order_mark_is_allowed(file: Path) -> None:
    write(file, "\N{ZERO WIDTH NO-BREAK SPACE}" + FILE)
    async with Client("memory://") as client:
        assert len((await client.apply_jobs(file)).added) == 2


async def test_text_that_is_no_toml_is_refused_with_its_line(file: Path) -> None:
    write(file, "[jobs.x]\nhandler = later\n")
    async with Client("memory://") as client:
        with pytest.raises(InvalidInput, match=r"is not valid TOML: .*line 2"):
            await client.apply_jobs(file)
        with pytest.raises(InvalidInput, match="there is no file"):
            await client.apply_jobs(file.with_name("gone.toml"))


async def test_variables_of_the_environment_are_filled_in_and_headers_with_them_kept_secret(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    write(
        file,
        "[jobs.call.webhook]\n"
        'url = "https://example.org/$${x}"\n'
        'headers = { X-Token = "Bearer ${SHOP_TOKEN}", X-Plain = "$${x} $5" }\n',
    )
    async with Client("memory://") as client:
        await client.apply_jobs(file)
        webhook = (await client.get_job("call")).webhook
        assert webhook is not None
        assert (webhook.url, dict(webhook.headers)) == (
            "https://example.org/${x}",
            {"X-Plain": "${x} $5"},
        )
        assert list(webhook.secret_headers) == ["X-Token"]
        monkeypatch.setenv("SHOP_TOKEN", "other")
        again = await client.apply_jobs(file)
        assert [d.field for d in again.changed[0].differences] == ["webhook.secrets"]
        assert "s3cret" not in repr(again)


async def test_without_handlers_no_code_is_imported(file: Path) -> None:
    write(file, '[jobs.x]\nhandler = "no_such_module:run"\n')
    async with Client("memory://") as client:
        await client.apply_jobs(file, with_handlers=False)
        assert (await client.get_job("x")).handler == "no_such_module:run"


async def test_apply_whose_answer_was_lost_is_completed_by_the_next(file: Path) -> None:
    class Lost:
        def inject(self, method: str) -> Injection:
            return Injection("after") if method == "put_jobs" else Injection()

    memory = MemoryStore()
    async with Client(FaultyStore(memory, Lost())) as client:
        with pytest.raises(StoreUnavailable):
            await client.apply_jobs(file)
    async with Client(memory) as client:
        done = await client.apply_jobs(file)
        assert [job.id for job in done.unchanged] == ["nightly", "ping"]


async def test_a_mapping_gives_a_function_itself_and_two_jobs_may_share_it() -> None:
    def total(first: int, second: int = 1) -> int:
        return first + second

    jobs = {
        "small": {"handler": total, "payload": {"first": 1}},
        "large": {"handler": total, "payload": {"first": 1, "second": 100}},
    }
    async with Scheduler("memory://", jobs=jobs) as scheduler:
        assert {"small", "large"} <= set(scheduler.handlers)
        runs = [await scheduler.trigger(job) for job in jobs]
        assert [(await scheduler.wait(run.id, timeout="1m")).result for run in runs] == [2, 101]
