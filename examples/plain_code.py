"""The scheduler in plain code, without an event loop of its own."""

from mainspring import Scheduler

scheduler = Scheduler("memory://")


@scheduler.job(retries=2, retry_delay="100ms")
def thumbnail(path: str, width: int = 200) -> str:
    return f"{path} at {width} px"


if __name__ == "__main__":
    with scheduler.blocking:
        runs = thumbnail.blocking.enqueue_many({"path": f"{n}.jpg"} for n in range(3))
        for run in runs:
            print(scheduler.blocking.wait(run.id, timeout="20s").result)
