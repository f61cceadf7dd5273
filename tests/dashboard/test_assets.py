"""The files of the pages: they are what the list says, and a browser may keep them."""

from __future__ import annotations

import hashlib
import re

from mainspring.dashboard import assets
from tests.support.service import Api

VENDOR = assets.FOLDER / "vendor"


def test_vendored_files_are_unchanged_and_have_a_licence() -> None:
    listed = dict(re.findall(r"^\| (\S+\.(?:js|css)) \|.*\| ([0-9a-f]{64}) \|$", _list(), re.M))
    kept = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert set(listed) == kept
    for name, expected in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected, name
    for licence in re.findall(r"\((\S+\.LICENSE\.txt)\)", _list()):
        assert (VENDOR / licence).stat().st_size > 100


def _list() -> str:
    return (VENDOR / "README.md").read_text()


async def test_an_asset_is_kept_for_ever_under_its_hash(api: Api) -> None:
    where = f"/{assets.asset_address('app.css')}"
    answer = await api.get(where)
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content == (assets.FOLDER / "app.css").read_bytes()
    plain = await api.get(where, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content
    other = await api.get("/assets/older/app.css")
    assert other.headers["cache-control"] == "no-cache"


async def test_no_other_file_can_be_read(api: Api) -> None:
    for name in ("../app.py", "..%2fapp.py", "vendor/README.md", "nothing.js", "%2e%2e/pages.py"):
        assert (await api.get(f"/assets/x/{name}")).status_code == 404, name
