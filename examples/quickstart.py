from mainspring import RunContext, Scheduler

scheduler = Scheduler("sqlite:///quickstart.db")


@scheduler.job("5s")
async def heartbeat(ctx: RunContext) -> None:
    ctx.log.info("still ticking, due at %s", ctx.scheduled_at)


@scheduler.job(retries=3, timeout="30s")
def send_email(ctx: RunContext, to: str, subject: str = "hello") -> str:
    return f"sent {subject!r} to {to}"


if __name__ == "__main__":
    scheduler.run()
