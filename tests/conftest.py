"""What a test run shows: each file when it is done, each failure when it happens, why tests were
skipped, and which tests needed more CPU than they may."""

from __future__ import annotations

import gc
import os
import resource
from collections import Counter
from collections.abc import Generator, Iterable

import pytest
from hypothesis import HealthCheck, settings

CPU_LIMIT = 30.0
"""Seconds of CPU that a test may need, its child processes included. Most need less than one."""

CPU = "cpu seconds"

# A busy machine is no reason to fail: no deadline for an example, none for its generation.
# The same examples every time: what nobody changed must not fail. `make simulate` draws new ones.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("mainspring", _patient, derandomize=True)
settings.register_profile("random", _patient, print_blob=True)
settings.load_profile("mainspring")

_started = pytest.StashKey[float]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a browser share one loop: the connection to the browser lives on it."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def pytest_collection_finish() -> None:
    """Modules and collected tests stay to the end: 400,000 objects, which the garbage collector
    would otherwise look through again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_started] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((CPU, _cpu_seconds() - item.stash[_started]))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More workers than cores: for about half of its time a test waits, for a process to start,
    a lease to lapse, a server to be elected."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + 2


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def pytest_configure(config: pytest.Config) -> None:
    """Where a person or a log reads along; `-v` shows each test by name, as always."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not in_worker and config.get_verbosity() <= 0:
        config.pluginmanager.register(Progress(config), "mainspring-progress")


class Progress:
    """Writes a line for each file when all of its tests are done, instead of dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left: Counter[str] = Counter()
        self._outcomes: dict[str, Counter[str]] = {}
        self._cpu: dict[str, float] = {}
        self._total = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        self._expect(ids)  # each worker collects the same

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dot for a test: its file's line counts it. The words are for the last summary."""
        if report.failed:
            return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")
        if report.skipped:
            return "skipped", "", "SKIPPED"
        return ("passed", "", "") if report.when == "call" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        outcomes = self._outcomes.setdefault(file, Counter())
        if report.failed:
            outcomes["failed"] += 1
            self._show_failure(report)
        elif report.when == "call" or report.skipped:
            outcomes[report.outcome] += 1
        if report.when == "teardown":
            cpu = dict(report.user_properties).get(CPU)
            self._cpu[report.nodeid] = cpu if isinstance(cpu, float) else 0.0
            self._left[file] -= 1
            if self._left[file] == 0:
                self._show_file(file, outcomes)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        over = {name: cpu for name, cpu in self._cpu.items() if cpu > CPU_LIMIT}
        if over:
            terminalreporter.section(f"tests that needed more than {CPU_LIMIT:.0f} s of CPU")
        for name, cpu in sorted(over.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{cpu:6.1f} s  {name}")

    def _expect(self, ids: Iterable[str]) -> None:
        if not self._total:
            self._left.update(_file(one) for one in ids)
            self._total = sum(self._left.values())

    def _show_file(self, file: str, outcomes: Counter[str]) -> None:
        done = self._total - sum(self._left.values())
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        cpu = sum(cpu for name, cpu in self._cpu.items() if _file(name) == file)
        self._terminal.ensure_newline()
        self._terminal.write_line(
            f"[{100 * done // max(self._total, 1):3d}%] {file}: {told} ({cpu:.1f} s of CPU)",
            **{"red": True} if outcomes["failed"] else {},
        )

    def _show_failure(self, report: pytest.TestReport) -> None:
        self._terminal.ensure_newline()
        self._terminal.write_sep("_", f"FAILED {report.nodeid}", red=True)
        self._terminal.write_line(report.longreprtext)

    @property
    def _terminal(self) -> pytest.TerminalReporter:
        found: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin(
            "terminalreporter"
        )
        assert found is not None
        return found


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
