"""The files in deploy/, and the variables that the service reads."""

from __future__ import annotations

from pathlib import Path

from mainspring.service.settings import ServiceSettings
from mainspring.webhooks.service import ALLOW_VARIABLE, CAP_VARIABLE, PER_HOST_VARIABLE
from mainspring.webhooks.vault import VARIABLE as SECRET_KEY

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
KNOWN = {
    *(name.upper() for name in ServiceSettings.model_fields),
    *("MAINSPRING_STORE", "MONGODB_URI", "MAINSPRING_APP"),
    *(SECRET_KEY, ALLOW_VARIABLE, PER_HOST_VARIABLE, CAP_VARIABLE),
}
"""The variables that the service reads."""


def docker_steps(word: str) -> list[str]:
    """What stands behind a word of the container file, lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line[len(word) + 1 :] for line in joined.splitlines() if line.startswith(f"{word} ")]
