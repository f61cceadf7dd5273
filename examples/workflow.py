"""Jobs that follow jobs: each run of `extract` starts one instance of the whole graph."""

import asyncio

from mainspring import RunContext, Scheduler

scheduler = Scheduler("memory://")


@scheduler.job()
async def extract() -> list[int]:
    return [3, 1, 2]


@scheduler.job(after=extract)
async def sort(ctx: RunContext) -> list[int]:
    return sorted(ctx.results["extract"])


@scheduler.job(after=extract)
async def total(ctx: RunContext) -> int:
    return sum(ctx.results["extract"])


@scheduler.job(after=[sort, total])
async def report(ctx: RunContext) -> str:
    return f"{ctx.results['sort']} make {ctx.results['total']}"


async def main() -> None:
    async with scheduler:
        root = await scheduler.trigger("extract")
        finished = await scheduler.wait(f"report@{root.id}", timeout="20s")
        print(finished.result)


if __name__ == "__main__":
    asyncio.run(main())
