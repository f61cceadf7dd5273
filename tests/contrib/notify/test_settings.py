"""Settings that cannot work are refused at the start, with the key in the file."""

from pathlib import Path
from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.contrib.notify import install, read_settings
from mainspring.contrib.notify.targets import Email, Slack
from mainspring.errors import InvalidInput

SLACK = "[notify.targets.team]\nslack = 'https://hooks.example.org/x'\n"
MAIL = """
[notify.targets.ops]
email = "ops@example.org"
from = "jobs@example.org"
host = "smtp.example.org"
"""


def read(folder: Path, text: str) -> list[tuple[str | None, str]]:
    """The errors of a file: the key of each, and what it says."""
    file = folder / "mainspring.toml"
    file.write_text(text)
    try:
        Scheduler("memory://", jobs=file)
    except InvalidInput as error:
        errors = error.each()
    else:
        return []
    assert all(str(one).startswith(f"{file}: {one.field}: ") for one in errors)
    return [(one.field, str(one)) for one in errors]


def test_a_file_may_take_passwords_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SLACK + MAIL + "user = 'jobs'\npassword = '${SMTP_PASSWORD}'\n"
    [(key, why)] = read(tmp_path, text)
    assert key == "notify.targets.ops.password"
    assert "the environment variable SMTP_PASSWORD is not set" in why
    monkeypatch.setenv("SMTP_PASSWORD", "s3cret")
    assert read(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        ("notify = 1", "notify", "is a table"),
        ("[notify]\non = 'failure'", "notify.targets", "is a table for each target"),
        ("[notify]\non = ['fail']\n" + SLACK, "notify.on", "is one or more of failure, recovery"),
        ("[notify]\nthrottel = 1\n" + SLACK, "notify.throttel", "did you mean 'throttle'?"),
        ("[notify]\nthrottle = 'often'\n" + SLACK, "notify.throttle", "often"),
        ("[notify]\nthrottle = -1\n" + SLACK, "notify.throttle", "-1"),
        ("[notify]\nthrottle = '31d'\n" + SLACK, "notify.throttle", "at most 30 days"),
        ("[notify]\non = [['failure']]\n" + SLACK, "notify.on", "is one or more of"),
        ("[notify]\non = { failure = 1 }\n" + SLACK, "notify.on", "is one or more of"),
        ("[notify.targets.t]\nurl = 'http://a:b@c/'", "notify.targets.t.url", "`headers` take"),
        ("[notify.targets.t]\nslack = 'http://a@b'", "notify.targets.t.slack", "without user:"),
        ('[notify.targets.t]\nurl = "http://a/\\n"', "notify.targets.t.url", "begins with"),
        (
            '[notify.targets.t]\nurl = "http://a"\nheaders = { A = "b\\n" }',
            "notify.targets.t.headers",
            "ASCII",
        ),
        (MAIL.replace('.org"\nfrom', '.org\\n"\nfrom'), "notify.targets.ops.email", "an address"),
        (MAIL.replace("smtp.example.org", "smtp\\n"), "notify.targets.ops.host", "mail server"),
        ("[notify.targets]\nteam = 'https://x'", "notify.targets.team", "slack, url and email"),
        ("[notify.targets.team]\n", "notify.targets.team", "not 0"),
        (SLACK + "url = 'https://x'", "notify.targets.team", "not 2"),
        (SLACK + "secret = 'x'", "notify.targets.team.secret", "unknown key"),
        ("[notify.targets.'a b']\nslack = 'https://x'", "notify.targets.a b", "200 letters"),
        ("[notify.targets.t]\nslack = 'hooks'", "notify.targets.t.slack", "begins with https://"),
        ("[notify.targets.t]\nurl = 'file:///etc'", "notify.targets.t.url", "begins with https://"),
        ("[notify.targets.t]\nurl = 'http://a b/'", "notify.targets.t.url", "begins with https://"),
        ("[notify.targets.t]\nurl = 'http://a'\nsecret = 'x'", "notify.targets.t.secret", "whsec_"),
        (
            '[notify.targets.t]\nurl = "http://a"\nheaders = { A = "b\\nC: d" }',
            "notify.targets.t.headers",
            "ASCII",
        ),
        (MAIL.replace("ops@", "@"), "notify.targets.ops.email", "an address such as"),
        (MAIL.replace('"ops@example.org"', "[]"), "notify.targets.ops.email", "or a list"),
        (MAIL.replace("from", "# from"), "notify.targets.ops.from", "and is missing"),
        (MAIL.replace("smtp.", "smtp:25."), "notify.targets.ops.host", "port has a key"),
        (MAIL + "port = 70000", "notify.targets.ops.port", "from 1 to 65535"),
        (MAIL + "port = '25'", "notify.targets.ops.port", "from 1 to 65535"),
        (MAIL + "security = 'ssl'", "notify.targets.ops.security", "starttls, tls, none"),
        (MAIL + "user = 'jobs'", "notify.targets.ops.user", "user and password, or neither"),
        (MAIL + "password = 1\nuser = ''", "notify.targets.ops.password", "is a text"),
        (
            MAIL + "user = 'a'\npassword = 'b'\nsecurity = 'none'",
            "notify.targets.ops.security",
            "plain text",
        ),
    ],
)
def test_a_wrong_setting_is_named_by_its_key(tmp_path: Path, text: str, key: str, why: str) -> None:
    [(named, said), *_] = read(tmp_path, text)
    assert named == key
    assert why in said


def test_no_error_shows_a_secret(tmp_path: Path) -> None:
    text = "[notify.targets.a]\nslack = 'hooks.example.org/s3cret'\n" + MAIL
    text += "user = 'jobs'\npassword = ['s3cret']\n"
    said = read(tmp_path, text)
    assert len(said) == 2
    assert "s3cret" not in str(said)
    for table in ("https://h/s3cret", {"targets": "https://h/s3cret"}):
        with pytest.raises(InvalidInput, match="not str") as error:
            read_settings(table)
        assert "s3cret" not in str(error.value)
    kept = read_settings({"targets": {"team": {"slack": "https://hooks.example.org/s3cret"}}})
    assert "s3cret" not in repr(kept)


def test_a_url_may_have_a_query_and_an_at_sign_in_its_path() -> None:
    for url in ("http://a?b=c@d", "https://[::1]:8080/@team?x=1", "http://a"):
        assert read_settings({"targets": {"t": {"url": url}}}).targets


def test_defaults() -> None:
    mail: dict[str, Any] = {"email": ["a@b.c"], "from": "d@e.f", "host": "localhost"}
    settings = read_settings({"targets": {"ops": mail, "team": {"slack": "http://127.0.0.1:1/x"}}})
    assert settings.on == {"failure", "recovery", "missed", "breaker"}
    assert settings.throttle.total_seconds() == 900
    assert isinstance(settings.targets["ops"], Email)
    assert isinstance(settings.targets["team"], Slack)


def test_install_refuses_the_same() -> None:
    with pytest.raises(InvalidInput, match="begins with https://") as error:
        install(Scheduler("memory://"), {"team": {"slack": "x"}})
    assert error.value.field == "targets.team.slack"
