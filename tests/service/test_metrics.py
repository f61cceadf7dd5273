"""`/metrics`, read as Prometheus reads it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainspring.core.clock import EPOCH
from mainspring.core.model import Attempt, Outcome, on_each_node, replace
from mainspring.service import metrics as module
from mainspring.service.metrics import Metrics
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import JobQuery
from mainspring.testing import FakeClock, FaultyStore
from mainspring.testing.store_calls import put_job
from tests.support.engine import SwitchableFaults
from tests.support.service import LONG, Api, Make, sample_scheduler, until
from tests.support.service_calls import finished


@pytest.fixture(autouse=True)
def no_cached_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEXT_CACHE_SECONDS", 0.0)


DEPLOY = Path(__file__).parents[2] / "deploy"
_SAMPLE = re.compile(r'([a-z_]+)(\{([a-z]+="(?:[^"\\\n]|\\.)*",?)*\})? (\S+)')


async def scraped(api: Api) -> dict[str, float]:
    """Every sample by its name and labels. A line that is none fails here."""
    answer = await api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    metrics = api.app.state.service.metrics
    metrics._read_at = metrics._health_at = None
    samples = {}
    for line in answer.text.splitlines():
        if line.startswith("# "):
            assert line.split()[1] in ("HELP", "TYPE")
            continue
        found = _SAMPLE.fullmatch(line)
        assert found, line
        name = line.rpartition(" ")[0]
        assert name not in samples, f"{name} twice"
        samples[name] = float(found[4])
    return samples


async def test_runs_are_counted_by_job_and_state(working: Api) -> None:
    await finished(working, name="Ada")
    await finished(working, name="Ada")
    await finished(working, name="nobody")
    samples = await scraped(working)
    assert samples['mainspring_runs_total{job="greet",state="succeeded"}'] == 2
    assert samples['mainspring_runs_total{job="greet",state="failed"}'] == 1
    assert samples['mainspring_run_duration_seconds_count{job="greet"}'] == 3
    assert samples['mainspring_run_duration_seconds_bucket{job="greet",le="+Inf"}'] == 3
    assert samples['mainspring_run_lateness_seconds_count{job="greet"}'] == 3
    assert samples['mainspring_stored_runs{state="succeeded"}'] == 2
    ended = 'mainspring_job_ended_runs{job="greet",state="%s"}'
    assert (samples[ended % "succeeded"], samples[ended % "failed"]) == (2, 1)
    assert samples['mainspring_job_consecutive_failures{job="greet"}'] == 1
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= samples.keys()
    assert samples["mainspring_capacity"] == 4
    assert samples["mainspring_store_up"] == 1
    assert samples["mainspring_ownership_lost_total"] == 0
    last = samples['mainspring_job_last_success_timestamp_seconds{job="greet"}']
    upcoming = samples['mainspring_job_next_run_timestamp_seconds{job="report"}']
    assert last < upcoming
    assert samples['mainspring_http_requests_total{method="POST",status="202"}'] == 3


async def test_running_leading_losing_and_rescuing_are_told(make: Make) -> None:
    faults = SwitchableFaults()
    store: Any = FaultyStore(MemoryStore(), faults)
    api: Api = await make(sample_scheduler(store, workers=2, lease="1s"))
    await api.scheduler.enqueue("forever")

    async def comes(name: str) -> bool:
        return (await scraped(api)).get(name) == 1

    await until(partial(comes, "mainspring_runs_running"))
    await until(partial(comes, "mainspring_leader"))
    faults.failing.add("renew")
    await until(partial(comes, "mainspring_ownership_lost_total"))
    await until(partial(comes, 'mainspring_runs_rescued_total{job="forever"}'))
    faults.failing.clear()
    await until(partial(comes, "mainspring_runs_running"))  # claimed again, and renewed
    assert (await scraped(api))["mainspring_ownership_lost_total"] == 1
    await api.scheduler.stop(graceful=False)


async def test_queues_have_series_until_there_are_too_many(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is empty again keeps its series, at 0. Those without due runs are dropped
    first, and what is due of queues without a label is summed up."""
    monkeypatch.setattr(module, "MAX_QUEUES", 2)
    scheduler = api.scheduler
    await scheduler.store.add(
        on_each_node(await scheduler.enqueue("greet", {}, queue="a"), ["w1"], EPOCH)
    )

    async def due() -> dict[str, float]:
        await asyncio.sleep(0.001)
        samples = await scraped(api)
        found = {}
        for name, value in samples.items():
            if name.startswith("mainspring_queue_runs_due"):
                found[name.split('"')[1]] = value
                oldest = samples[name.replace("runs_due", "due_oldest_seconds")]
                assert (oldest > 0) is (value > 0)
        return found

    assert await due() == {"a": 1}
    await scheduler.cancel_runs(job="greet")
    assert await due() == {"a": 0}
    for queue in "bcdd":
        await scheduler.enqueue("greet", {}, queue=queue)
    assert await due() == {"b": 1, "c": 1, "other": 2}


async def test_the_last_success_is_known_after_a_restart(make: Make, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    first: Api = await make(sample_scheduler(url, workers=1))
    await finished(first, name="Ada")
    name = 'mainspring_job_last_success_timestamp_seconds{job="greet"}'
    second: Api = await make(sample_scheduler(url, workers=0))
    assert (await scraped(second))[name] == (await scraped(first))[name]


async def test_jobs_that_are_gone_free_their_labels(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_JOBS", 3)
    scheduler = sample_scheduler(workers=0)
    made = Metrics(scheduler, FakeClock())

    async def counted() -> set[str]:
        made._read_at = None
        return set(
            re.findall(
                r'mainspring_run_\w+_(?:total|count){job="([^"]+)"', (await made.text()).decode()
            )
        )

    def ran(job_id: str) -> None:
        made._count_run("run.started", replace(run, job_id=job_id, started_at=run.run_at))
        made._count_run("run.retrying", replace(run, job_id=job_id))

    async with scheduler:
        run = await scheduler.enqueue("greet")
        for job_id in ("a", "b", "c", "d"):
            await scheduler.add_job(job_id, handler="greet")
            ran(job_id)
        assert await counted() == {"a", "b", "c", "other"}
        for job_id in ("a", "b"):
            await scheduler.remove_job(job_id)
        ran("a")  # it was at work
        assert await counted() == {"a", "b", "c", "other"}
        assert await counted() == {"c", "other"}
        await scheduler.add_job("a", handler="greet")
        for job_id in ("d", "a"):
            ran(job_id)
        for _ in range(3):
            assert await counted() == {"a", "c", "d", "other"}
        assert 'mainspring_run_retries_total{job="a"} 1.0' in (await made.text()).decode()


async def test_webhook_answers_by_class() -> None:
    scheduler = sample_scheduler(workers=0)
    made = Metrics(scheduler, FakeClock())
    async with scheduler:
        run = await scheduler.enqueue("greet")
        for response in ({"status": 200}, {"status": 204}, {"status": 503}, None):
            detail = {"request": {"url": "https://secret.example/x"}, "response": response}
            attempt = Attempt(1, "w", run.run_at, run.run_at, Outcome.FAILED, detail=detail)
            made._count_run("run.retrying", replace(run, attempts=(attempt,)))
        text = (await made.text()).decode()
    assert 'mainspring_webhook_responses_total{class="2xx",job="greet"} 2.0' in text
    assert 'mainspring_webhook_responses_total{class="5xx",job="greet"} 1.0' in text
    assert 'mainspring_webhook_responses_total{class="error",job="greet"} 1.0' in text
    assert "secret.example" not in text
    assert run.id not in text


async def test_breakers_and_health_are_told_as_every_instance_sees_them(
    make: Make, tmp_path: Path
) -> None:
    """Also by an instance that made none of the changes."""
    file = f"sqlite:///{tmp_path}/jobs.db"
    working, other = await make(store=file, workers=1), await make(store=file, workers=0)
    await working.scheduler.add_job("call", handler="greet", breaker=1)
    run = await working.scheduler.enqueue("call", {"name": "nobody"})
    await working.scheduler.wait(run.id, 10)
    async with asyncio.timeout(LONG):
        while (await working.scheduler.job_health("call")).breaker != "open":
            await asyncio.sleep(0.01)
    samples = await scraped(other)
    assert samples['mainspring_job_breaker{job="call",state="open"}'] == 1
    assert samples['mainspring_job_health{job="call",status="unhealthy"}'] == 1
    assert samples['mainspring_job_health{job="greet",status="unknown"}'] == 1
    assert not any("mainspring_job_breaker" in name and '"greet"' in name for name in samples)
    await working.scheduler.reset_breaker("call")
    samples = await scraped(working)
    name = 'mainspring_breaker_changes_total{change="%s",job="call"}'
    assert (samples[name % "opened"], samples[name % "closed"]) == (1, 1)
    await working.scheduler.pause_job("call")
    samples = await scraped(other)
    told = [n for n in samples if n.startswith("mainspring_job_") and 'job="call",st' in n]
    told = [n for n in told if "ended" not in n]
    assert told == [
        'mainspring_job_health{job="call",status="paused"}',
        'mainspring_job_breaker{job="call",state="closed"}',
    ]


async def test_no_slot_is_told_as_missed_while_all_firing_is_paused(api: Api) -> None:
    await api.scheduler.pause_all()
    [job] = (await api.scheduler.store.jobs(JobQuery(ids=frozenset({"report"})))).items
    now = await api.scheduler.now()
    assert await put_job(api.scheduler.store, replace(job, next_run_at=now - timedelta(hours=1)))
    samples = await scraped(api)
    assert samples["mainspring_firing_paused"] == 1
    assert samples['mainspring_job_health{job="report",status="paused"}'] == 1
    slot = samples['mainspring_job_next_run_timestamp_seconds{job="report"}']
    assert slot > now.timestamp()
    rules = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]
    [missed] = [one["expr"] for one in rules if one["alert"] == "MainspringJobMissedItsSlot"]
    assert "unless on() max(mainspring_firing_paused) == 1" in missed


async def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are(working: Api) -> None:
    await finished(working, name="nobody")
    text = (await working.get("/metrics")).text
    there = set(re.findall(r"# TYPE (\w+)", text))
    dashboard = (DEPLOY / "grafana-dashboard.json").read_text()
    json.loads(dashboard)
    alerts = (DEPLOY / "prometheus-alerts.yml").read_text()
    autoscaling = (DEPLOY / "kubernetes" / "autoscaling.yaml").read_text()
    for name in re.findall(r"mainspring_\w+", dashboard + alerts + autoscaling):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert base in there or name in there, name
