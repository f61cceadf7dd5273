from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.django_project import DjangoProject
from tests.support.servers.fixtures import *  # noqa: F403


@pytest.fixture
def project(tmp_path: Path) -> DjangoProject:
    return DjangoProject(tmp_path)
