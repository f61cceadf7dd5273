"""A webhook job and the endpoint it calls, in one program.

The endpoint fails the first request, so that you see a retry with the same id. It verifies the
signature, and recognises a repeat by that id. `pip install '/path/to/mainspring[server]'`
"""

import asyncio
import base64
import hmac

from aiohttp import web

from mainspring import Scheduler
from mainspring.webhooks import WebhookSettings, new_signing_secret

SECRET = new_signing_secret()
KEY = base64.b64decode(SECRET.removeprefix("whsec_"))


class Receiver:
    """The endpoint. In real life it is another program."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        name, sent_at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
        signed = hmac.digest(KEY, f"{name}.{sent_at}.".encode() + body, "sha256")
        expected = "v1," + base64.b64encode(signed).decode()
        given = request.headers["webhook-signature"].split()
        if not any(hmac.compare_digest(expected, one) for one in given):
            return web.Response(status=401)
        self.seen[name] = self.seen.get(name, 0) + 1
        if self.seen[name] == 1:
            return web.Response(status=503, headers={"Retry-After": "0"})
        return web.json_response({"try": self.seen[name]})


async def main() -> None:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]

    scheduler = Scheduler("memory://", webhooks=WebhookSettings(allow=["127.0.0.1"]))
    async with scheduler:
        await scheduler.add_job(
            "notify",
            schedule="10m",
            webhook={
                "url": f"http://{host}:{port}/hook",
                "headers": {"Authorization": "Bearer never-shown"},
                "body": {"event": "tick", "at": "{{timestamp}}", "run": "{{executionId}}"},
                "signing_secret": SECRET,
            },
            retries=3,
            replace=True,  # at the next start too
        )
        run = await scheduler.trigger("notify")
        run = await scheduler.wait(run.id, timeout=30)
        for attempt in run.attempts:
            answer = attempt.detail["response"]
            print(f"attempt {attempt.number}: {answer['status']} {answer['body']}")
        print("sent", attempt.detail["request"]["headers"]["Authorization"], "as", run.id)
        print(run.state, run.result)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
