"""Without the extra `server` the core works, and says what the service needs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import mainspring.service
from mainspring import Scheduler
from mainspring.errors import InvalidInput


def test_serve_without_the_extra_names_the_extra(monkeypatch: Any) -> None:
    monkeypatch.setattr(mainspring.service, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'mainspring\[server\]'"):
        Scheduler("memory://").asgi()


def test_the_core_imports_nothing_of_the_server_extra() -> None:
    script = (
        "import sys, mainspring\n"
        "from mainspring import Scheduler\n"
        "import mainspring.cli.program\n"
        "Scheduler('memory://')\n"
        "heavy = {'fastapi', 'uvicorn', 'pydantic', 'starlette', 'aiohttp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_unknown_auth_value_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'keys' or None"):
        Scheduler("memory://").asgi(auth="none")
