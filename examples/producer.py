"""A program that only enqueues (`workers=0`): the worker runs elsewhere, on the same store."""

import asyncio
import sys

from mainspring import Scheduler


async def main(store: str) -> None:
    async with Scheduler(store, workers=0) as producer:
        run = await producer.enqueue(
            "send_email", {"to": "a@example.org"}, dedupe_key="welcome:42", delay="1s"
        )
        print("queued", run.id, "(it was there already)" if run.duplicate else "")
        finished = await producer.wait(run.id, timeout="20s")
        print(finished.state, finished.result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///quickstart.db"))
