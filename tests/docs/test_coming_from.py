"""Each name that users of another scheduler know is in a table of the page for them."""

from __future__ import annotations

import re

import pytest

from tests.support.doc_examples import DOCS

PAGES = {
    "mongo-job-scheduler": """
        Scheduler MongoJobStore store handler workers lockTimeoutMs start stop graceful timeoutMs
        schedule scheduleBulk name data repeat cron timezone every dedupeKey concurrency priority
        cancel getJob attempts job._id job.name job.data status pending running nextRunAt lockUntil
        markCompleted JobOwnershipError scheduler_jobs workerId
        maxPoolSize minPoolSize serverSelectionTimeoutMS socketTimeoutMS retryWrites retryReads
        writeConcern
        scheduler:start scheduler:stop scheduler:error worker:start worker:stop job:created
        job:start job:success job:complete job:fail job:retry job:cancel
    """,
    "morojs-jobs": """
        createApp job enabled maxConcurrentJobs gracefulShutdownTimeout everyInterval cronSchedule
        oneTimeAt leaderElection strategy lockPath lockTimeout heartbeatInterval executor maxRetries
        retryDelay retryBackoff timeout enableCircuitBreaker enableMemoryMonitoring memoryThreshold
        stateManager persistPath historySize persistInterval enableAutoPersist enableRecovery
        name priority maxConcurrent metadata setJobEnabled triggerJob unregisterJob
        getJobMetrics successRate failureRate averageDuration totalExecutions recentFailures
        getJobHealth jobId status lastExecution consecutiveFailures nextRun circuitBreakerState
        getJobStats totalJobs enabledJobs runningJobs queuedJobs isLeader isStarted
        getSchedulerHealth executionId onStart onComplete onError result error duration
        job:start job:complete job:error circuit-breaker:open
    """,
    "s3db-scheduler": """
        enabled timezone jobs maxConcurrentJobs persistJobs historyResource cleanupInterval
        historyRetention schedule description action retries timeout runOnStart context
        context.jobName context.startTime addJob removeJob updateJob runJob listJobs getJobHistory
        limit status success completed failed started_at duration jobName startTime error attempt
        lockedAt instanceId job_started job_completed job_failed job_retry scheduler_started
        scheduler_stopped stop scheduler_job_locks job_executions job_history
    """,
    "http-scheduler": """
        PORT MONGODB_URI SCHEDULER_POLL_INTERVAL MAX_CONCURRENT_JOBS JOB_RETRY_ATTEMPTS
        JOB_RETRY_DELAY schedule endpoint method headers body executionType AT_LEAST_ONCE enabled
        retryAttempts retryDelay nextRunAt lastRunAt createdAt updatedAt _id jobId status failure
        running startedAt completedAt duration responseCode responseBody errorMessage attempt
        scheduledAt timestamp success data page limit executions isRunning runningJobs
        maxConcurrentJobs pollInterval total successful failed last24Hours job_executions
        /api/observability/health stats failures
    """,
}


@pytest.mark.parametrize("page", PAGES)
def test_each_name_of_the_other_scheduler_has_a_row(page: str) -> None:
    text = (DOCS / "how-to" / "coming-from" / f"{page}.md").read_text()
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    code = " ".join(snippet for row in rows for snippet in re.findall(r"`([^`]*)`", row))
    missing = [
        name
        for name in PAGES[page].split()
        if not re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", code)
    ]
    assert missing == []
