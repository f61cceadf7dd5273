"""Has one handler run: on the program's loop, in a thread, or in a process of its own. Handlers of
Mainspring itself, which block nobody, run on the engine's own loop.

The engine's loop says `begin` and `stop`; when the handler is over, the runner says so there.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mainspring.core.clock import CarriedClock, Clock
from mainspring.core.policy import Isolation
from mainspring.engine.attempt import Problem, Stop, Work
from mainspring.engine.executors.loop import Home
from mainspring.engine.executors.process_pool import ProcessPool, Target
from mainspring.engine.executors.threads import Threads
from mainspring.engine.executors.timeouts import Deadlines
from mainspring.engine.fork_guard import end_if_forked
from mainspring.engine.hooks import Hook, call_hook, start_hook
from mainspring.engine.loop_thread import call_soon
from mainspring.engine.results import storable_result
from mainspring.engine.telemetry import Tracing, traced

__all__ = ["Runner"]


class Runner:
    """`over(works, places)` is called on the engine's loop when attempts end and places come
    back, and `freed(work)` when a thread gives its place back, be it that it outlived its
    attempt. What is `at_home` needs no place to be given to the runner: it waits for one there.
    """

    def __init__(
        self,
        home: Home,
        built_in: Home,
        clock: Clock,
        time: CarriedClock,
        *,
        places: int,
        inline: bool,
        over: Callable[[list[Work], int], None],
        freed: Callable[[Work], None],
        tracing: Tracing | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = home
        self._built_in = built_in
        self._latest = built_in  # who was lent a place last
        self._time = time
        self._inline = inline
        self._over = over
        self._freed = freed
        self._tracing = tracing
        self._deadlines = Deadlines(self._loop, clock, lambda work: self.stop(work, Stop.TIMEOUT))
        self._threads = Threads()
        self._processes = ProcessPool(size=max(places, 1))

    async def close(self) -> None:
        self._threads.close()
        await self._processes.close()

    @property
    def unbegun(self) -> int:
        """How many works wait for a place on a loop."""
        return self._home.unbegun + self._built_in.unbegun

    @property
    def unused_places(self) -> int:
        """Places that the program's loop has and needs for no work."""
        return max(self._home.lent - self._home.dealt, 0)

    def at_home(self, work: Work) -> bool:
        """Whether its handler runs on a loop."""
        isolation = work.isolation
        return isolation is Isolation.AUTO or (isolation is Isolation.THREAD and self._inline)

    def begin(self, works: Sequence[Work], free: int, *, first: bool = False) -> int:
        """Begin these, with so many free places; says how many it took. Each work that is not
        `at_home` takes one. `first`: before those that wait for a place on their loop."""
        homely: list[Work] = []
        ours: list[Work] = []
        for work in works:
            if self.at_home(work):
                (ours if work.handler.built_in else homely).append(work)
            elif work.isolation is Isolation.PROCESS:
                self._begin_in_process(work)
            else:
                self._begin_in_thread(work)
        taken = len(works) - len(homely) - len(ours)
        self._home.deal(homely, first=first)
        self._built_in.deal(ours, first=first)
        return taken + self._lend(max(free - taken, 0))

    def _lend(self, free: int) -> int:
        """Places go to both loops alike, and to one what the other has no work for. A loop whose
        deck never empties would keep all it has: the other's share is recalled."""
        both = (self._home, self._built_in)
        few, many = sorted(both, key=lambda home: (home.lent, home is self._latest))
        even = (few.lent + many.lent + free + 1) // 2
        left = free
        for home, most in ((few, even - few.lent), (many, free), (few, free)):
            places = min(home.wants, max(most, 0), left)
            if places:
                home.lend(places)
                left -= places
                self._latest = home
        if few.wants:
            many.recall(min(few.wants, max((many.lent - few.lent) // 2, few.lent == 0)))
        return free - left

    def take_back(self, work: Work) -> bool:
        """Take back what has not begun; False if it has."""
        return self.at_home(work) and self._home_of(work).take_back(work)

    def stop(self, work: Work, why: Stop) -> None:
        """Ask a handler to end. A thread cannot be stopped: it is told, and waited for; one that
        was cancelled is waited for no longer than its timeout and its lease."""
        if work.ended:
            return
        if work.stop is not None:
            in_thread = not self.at_home(work) and work.isolation is not Isolation.PROCESS
            if why is Stop.LOST:  # nothing about the run is ours any more
                work.stop = why
            if in_thread and why in (Stop.TIMEOUT, Stop.LOST, Stop.DRAIN):
                self.give_up(work)
            return
        work.stop = why
        work.context.cancelled = True
        if self.at_home(work):
            self._home_of(work).stop(work)
        elif work.isolation is Isolation.PROCESS:
            if work.task is not None and work.began_at is not None:
                work.task.cancel()
        elif why is not Stop.CANCEL:
            self.give_up(work)

    def give_up(self, work: Work) -> None:
        """End an attempt though its handler goes on: a thread, or a coroutine that swallows every
        cancellation. Its place stays taken until the handler ends."""
        if work.ended:
            return
        if self.at_home(work):
            self._home_of(work).give_up(work)
        else:
            work.lingering = True
            self._end(work, places=0)

    def abandon(self, work: Work) -> None:
        """The program is about to end: do not let a handler that goes on keep it from that."""
        if self.at_home(work):
            self._home_of(work).abandon(work)

    def current_task(self) -> asyncio.Task[Any] | None:
        """What the program's loop is doing right now, as far as it can be seen from here."""
        return asyncio.current_task(self._home.loop)

    def tell(self, hook: Hook | None, *arguments: Any) -> None:
        """Call a hook on the program's loop; whatever it does, the run stands."""
        if hook is not None:
            self._home.call(start_hook, self._home.loop, hook, *arguments)

    def _home_of(self, work: Work) -> Home:
        return self._built_in if work.handler.built_in else self._home

    # In a thread

    def _begin_in_thread(self, work: Work) -> None:
        self._deadlines.watch(work)
        self._threads.submit(lambda: self._thread_body(work))

    def _thread_body(self, work: Work) -> None:
        work.began_at = self._time.now()
        result, problem = None, None
        pid = os.getpid()
        try:
            work.unless_stopped()
            if (hook := work.handler.hooks.on_start) is not None:
                told = call_hook(hook, work.context)
                asyncio.run_coroutine_threadsafe(told, self._home.loop).result()
            with traced(self._tracing, work):
                result = work.handler.call(work.context, work.run.payload)
                if inspect.isawaitable(result):  # an async handler that asked for a thread
                    result = asyncio.run(_awaited(result))
            result = storable_result(result, work.context)
        except BaseException as error:
            problem = Problem.of(error)
        end_if_forked(pid, problem)
        call_soon(self._loop, self._thread_over, work, result, problem)

    def _thread_over(self, work: Work, result: Any, problem: Problem | None) -> None:
        if work.ended:  # it was given up before; only its place comes back
            self._freed(work)
            return
        work.result, work.problem = result, problem
        self._end(work, places=0)
        self._freed(work)

    # In a process

    def _begin_in_process(self, work: Work) -> None:
        work.task = self._loop.create_task(self._process_body(work))

    async def _process_body(self, work: Work) -> None:
        work.began_at = self._time.now()
        self._deadlines.watch(work)
        try:
            work.unless_stopped()
            self.tell(work.handler.hooks.on_start, work.context)
            with traced(self._tracing, work):
                reply = await self._processes.run(
                    Target.of(work.handler.function),
                    work.run,
                    context=work.context,
                    takes_context=work.handler.takes_context,
                    arguments=work.handler.stored_arguments(work.run.payload),
                    results=work.context.results,
                    memory_limit=work.job.policy.memory_limit,
                )
            work.result = reply.result
            work.problem = Problem.remote(reply.error) if reply.error else None
        except BaseException as error:
            work.problem = Problem.of(error)
        self._end(work, places=1)

    def _end(self, work: Work, *, places: int) -> None:
        work.ended = True
        self._deadlines.forget(work)
        self._over([work], places)


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer
