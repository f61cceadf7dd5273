"""axe-core, fetched from its npm package: finds what people with disabilities cannot use."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page

from tests.support.servers.binaries import Archive, fetch
from tests.support.servers.cache import cache

__all__ = ["RULES", "serious_findings"]

VERSION = "4.14.0"
AXE = Archive(
    package=f"axe-core@{VERSION}",
    command=["npm", "pack", "--silent", "--pack-destination"],
    integrity="sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
    members={
        "package/axe.min.js": ("axe.min.js", "sha256-IMCf4Veoo0ow4kGqofza3mV3NPCKs3ns++t9RcxG6Hg=")
    },
    program="axe-core",
    advice="npm fetches it.",
)

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


async def serious_findings(page: Page, rules: list[str] = RULES) -> list[str]:
    """What is wrong on the page as it is shown, by the rules of WCAG 2.1 A and AA or by the given
    ones: the rule, and the first element that breaks it."""
    script = fetch(cache() / f"axe-{VERSION}", [AXE], lambda _: None) / "axe.min.js"
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(script.read_text())  # by the browser's own tools: the policy holds
    found: dict[str, Any] = await page.evaluate(
        "rules => axe.run(document, {runOnly: rules})", rules
    )
    return [
        f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:200]})"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical", "moderate")
    ]
