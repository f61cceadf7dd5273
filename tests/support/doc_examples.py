"""Reads the pages of the documentation, and runs their console examples.

A fenced block is an example by its language:

- `python`: a script; the blocks of a page are one file. Blocks of `>>>` lines are doctests. A block
  with a title is a file of that name, for the console examples of the page. With `append` after the
  title, it is added to the end of that file.
- `console`: commands after `$` (continued after `>`), each followed by the output that it has.
- `bash`: a script that is run against a live service.
- `sh`: commands that a test cannot run (docker, pip); only their names and flags are checked.

A comment `<!-- example: background -->` above a block says how it is run otherwise: `background`
(started in the first terminal, and stopped at the end of the page), `restart` (the same, after
everything in the first terminal was stopped), `eventually` (repeated until it prints what the page
shows), and `stream`, `pytest`, `mongodb`, `postgresql`, `mounted`, `endpoint`, `verify`,
`framework` (a file of a program, as for a web framework) and `excerpt` (a part of a file in
`examples/`) for tests of their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.server import free_port

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = {
    "background", "restart", "eventually", "stream", "pytest", "mongodb", "mounted", "endpoint",
    "verify", "excerpt", "framework", "postgresql",
}  # fmt: skip
LONG = 60.0

_FENCE = re.compile(
    r"(?:^ *<!-- example: (?P<kind>\w+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\"(?P<append> append)?)?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    language: str
    title: str | None
    kind: str | None
    text: str
    append: bool = False


class Command(NamedTuple):
    line: str
    output: str


def page_files() -> list[Path]:
    """The pages of the documentation, and those at the top of the repository."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = [
        Block(
            fence["language"],
            fence["title"],
            fence["kind"],
            _dedent(fence["text"], fence["indent"]),
            fence["append"] is not None,
        )
        for fence in _FENCE.finditer(text)
    ]
    fences = len(re.findall(r"^ *```\w", text, re.MULTILINE))
    assert len(found) == fences, f"{page.name}: a fenced block cannot be read"
    unknown = {one.kind for one in found if one.kind} - KINDS
    assert not unknown, f"{page.name}: unknown kinds of examples: {unknown}"
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block, each with the output that the page shows."""
    found = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, *rest = part.splitlines()
        while rest and rest[0].startswith("> "):
            line += "\n" + rest.pop(0)[2:]
        found.append(Command(line, "\n".join(rest)))
    assert found, f"a console block without a command: {block.text!r}"
    return found


def _dedent(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) if indent else text


# Comparing output

_VARYING = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)", "TIME"),
    (r"\b\d{8}T\d{6}(\.\d+)?Z", "TIME"),
    (r"\bin( \d+ [a-z]+)+|\b\d+ \w+ ago", "SPAN"),
    (r"[+-]?\d+\.\d+ ?(s|ms)\b|\b(\d+h\d\dm|\d+m\d\ds|\d\ds)\b", "DURATION"),
    (r"[\w.-]+:\d+:[0-9a-f]{8,24}\b", "WORKER"),
    (r"\b[0-9a-f]{12,32}\b", "ID"),
    (r"\bprocess \d+", "process N"),
    (r"\[\d+\]", "[N]"),
    (r"\d+\.\d+\.\d+ at \S+", "VERSION at PATH"),
    (r"(sqlite +)\d+\.\d+\.\d+", r"\1VERSION"),
    (r"[ \t]+", " "),
]


def normalized(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: times, ids, durations."""
    for pattern, name in _VARYING:
        text = re.sub(pattern, name, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def differs(shown: str, output: str) -> str | None:
    """Why an output is not what a page shows, or None. `…` stands for any text in a line, and alone
    on a line for any number of lines."""
    wanted, found = normalized(shown), normalized(output)
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else _line(line) + r"\n" for line in wanted
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in found)):
        return None
    return f"the page shows:\n{shown}\n\nthe command printed:\n{output}"


def _line(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…")))


# Running a page


class ConsoleSession:
    """The console examples of a page, in order, in one folder.

    What goes on runs in terminals that the page calls the first and the third. All other commands
    run in the second, which keeps its variables."""

    def __init__(self, folder: Path, binaries: Path | None = None) -> None:
        """`binaries` is a folder that comes first on the PATH."""
        self.folder = folder
        self._binaries = [*([binaries] if binaries else []), Path(sys.executable).parent]
        self._started: list[subprocess.Popen[str]] = []
        self._logs: list[Path] = []
        self._ports = {"3000": free_port(), "8000": free_port()}
        self._terminal = folder / ".second-terminal"

    def __enter__(self) -> ConsoleSession:
        return self

    def __exit__(self, *error: object) -> None:
        codes = self._stop(signal.SIGTERM)
        if not error[0]:
            assert codes == [0] * len(codes), [log.read_text() for log in self._logs]

    def press_control_c(self) -> None:
        """Stop what runs in the first terminal."""
        codes = self._stop(signal.SIGINT)
        assert codes == [0] * len(codes), [log.read_text() for log in self._logs]

    def _stop(self, by: signal.Signals) -> list[int]:
        codes = []
        for process in self._started:
            process.send_signal(by)
        for process in self._started:
            try:
                codes.append(process.wait(timeout=LONG))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        self._started.clear()
        return codes

    def write_file(self, block: Block) -> None:
        """Write a file of the page, or add to its end."""
        assert block.title is not None
        path = self.folder / block.title
        before = f"{path.read_text()}\n\n" if block.append else ""
        path.write_text(before + block.text)

    def start(self, command: Command) -> None:
        """Start a command that goes on, and wait until it has printed what the page shows."""
        log = self.folder / f".background-{len(self._logs)}"
        with log.open("w") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self._local(command.line)}"],
                cwd=self.folder,
                env=self._environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started.append(process)
        self._logs.append(log)
        deadline = time.monotonic() + LONG
        while (problem := self._differs_from_start(command.output, log)) is not None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, problem
            time.sleep(0.05)

    def _differs_from_start(self, shown: str, log: Path) -> str | None:
        """What was printed so far must begin as shown: later lines are nobody's business."""
        lines = log.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        problem = "nothing was printed"
        for end in range(len(whole) + 1):
            found = differs(shown, self._public("".join(whole[:end])))
            if found is None and (end or not shown):
                return None
            problem = found or problem
        return problem

    def run_until(self, command: Command) -> str | None:
        """Repeat a command until it prints what the page shows."""
        deadline = time.monotonic() + LONG
        while (problem := self.run(command)) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        return problem

    def run(self, command: Command) -> str | None:
        """Run a command to its end; why its output differs from the page's, or None."""
        variables = self._terminal
        resume = f"set -a; . {variables}; set +a; " if variables.exists() else ""
        script = f"{resume}{self._local(command.line)}\ncode=$?; export -p > {variables}"
        script += f"; set | grep -E '^(RUN|KEY|CI)=' >> {variables}; exit $code"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONG,
        )
        return differs(command.output, self._public(done.stdout))

    def _environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if "MAINSPRING" not in name},
            "PATH": ":".join([*map(str, self._binaries), os.environ["PATH"]]),
            "PORT": str(self._ports["3000"]),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }

    def _local(self, line: str) -> str:
        for shown, port in self._ports.items():
            line = line.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{port}")
            line = line.replace(f"--port {shown}", f"--port {port}")
        return line

    def _public(self, text: str) -> str:
        for shown, port in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{shown}")
        return text.replace(str(self.folder), "/srv/shop")
