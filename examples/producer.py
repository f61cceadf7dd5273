"""A program that only enqueues. Run quickstart.py beside it: its worker has the handler."""

import asyncio
import sys

from mainspring import Client


async def main(store: str) -> None:
    async with Client(store) as client:
        run = await client.enqueue(
            "send_email", {"to": "a@example.org"}, dedupe_key="welcome:42", delay="1s"
        )
        print("queued", run.id, "(it was queued before)" if run.duplicate else "")
        finished = await client.wait(run.id, timeout="20s")
        print(finished.state, finished.result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///quickstart.db"))
