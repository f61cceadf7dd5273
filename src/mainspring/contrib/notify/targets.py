"""Where messages go: Slack, any URL, e-mail. Sending blocks: it is called in a thread.

The address policy of webhooks does not apply: who may write the settings may also run code here,
and a chat server is often in the same network.
"""

from __future__ import annotations

import json
import logging
import smtplib
import ssl
import urllib.request
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from mainspring.errors import InvalidInput
from mainspring.webhooks.request import USER_AGENT, signature
from mainspring.webhooks.vault import signing_bytes

log = logging.getLogger("mainspring")

TIMEOUT = 10.0
"""Seconds for each step of a connection."""

PORTS = {"starttls": 587, "tls": 465, "none": 25}

Link = Annotated[str, Meta(pattern=r"^https?://[!-\"$-.0->A-~]+([/?][!-~]*)?\Z")]
Address = Annotated[str, Meta(pattern=r"^[^@\s,<>\"]+@[A-Za-z0-9.-]+\Z")]
Text = Annotated[str, Meta(pattern=r"^[ -~]+\Z")]


class Message(Struct, frozen=True):
    """`id`: the same if it comes again, and only then. `jobs`: the lines of each job. `at`: when it
    is sent, by the store's clock."""

    id: str
    title: str
    text: str
    jobs: Mapping[str, tuple[str, ...]]
    at: datetime


class _Unshown(Struct, frozen=True):
    """Its values may be secrets: a tool that reports errors shows them with `repr`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Slack(_Unshown, frozen=True, kw_only=True):
    """An incoming webhook of Slack, or of what takes the same (Mattermost, Discord's `/slack`)."""

    slack: Link

    def secrets(self) -> tuple[str, ...]:
        return (self.slack,)

    def send(self, message: Message) -> None:
        text = f"*{message.title}*\n{message.text}"
        for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # or <!channel> pings
            text = text.replace(sign, entity)
        _post(self.slack, {}, json.dumps({"text": text}).encode())


class Url(_Unshown, frozen=True, kw_only=True):
    """Any URL: a POST of JSON. With a `secret` it is signed as webhooks are."""

    url: Link
    headers: dict[Text, Text] = {}
    secret: str | None = None

    def __post_init__(self) -> None:
        if self.secret is not None:
            try:
                signing_bytes(self.secret)
            except InvalidInput as error:
                error.field = "secret"
                raise

    def secrets(self) -> tuple[str, ...]:
        return (self.url, *self.headers.values())

    def send(self, message: Message) -> None:
        document = {"title": message.title, "text": message.text, "jobs": message.jobs}
        body, timestamp = json.dumps(document).encode(), str(int(message.at.timestamp()))
        headers = {"webhook-id": message.id, "webhook-timestamp": timestamp, **self.headers}
        if self.secret is not None:
            signed = f"{message.id}.{timestamp}.".encode() + body
            headers["webhook-signature"] = signature(signing_bytes(self.secret), signed)
        _post(self.url, headers, body)


class Email(_Unshown, frozen=True, kw_only=True):
    """A mail by SMTP. The server's certificate is checked."""

    email: Address | Annotated[list[Address], Meta(min_length=1)]
    sender: Address = field(name="from")
    host: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]+\Z")]
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password: str | None = None

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise InvalidInput("give user and password, or neither", field="user")
        if self.user is not None and self.security == "none":
            why = 'a password needs security = "starttls" or "tls": else it is sent as plain text'
            raise InvalidInput(why, field="security")

    def secrets(self) -> tuple[str, ...]:
        return (self.password,) if self.password else ()

    def send(self, message: Message) -> None:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = message.title, self.sender, self.email
        mail["Date"] = format_datetime(message.at.astimezone(UTC))
        mail["Message-ID"] = f"<{message.id}.mainspring@{self.sender.rpartition('@')[2]}>"
        mail.set_content(message.text + "\n")
        host, port = self.host, self.port or PORTS[self.security]
        context = ssl.create_default_context()
        with closing(
            smtplib.SMTP_SSL(host, port, timeout=TIMEOUT, context=context)
            if self.security == "tls"
            else smtplib.SMTP(host, port, timeout=TIMEOUT)
        ) as server:
            if self.security == "starttls":
                server.starttls(context=context)
            if self.user is not None and self.password is not None:
                server.login(self.user, self.password)
            if refused := server.send_message(mail):
                log.warning("notify: the mail server refused %d of the recipients", len(refused))
            with suppress(smtplib.SMTPException, OSError):  # it has taken the mail
                server.quit()


Target = Slack | Url | Email


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """A redirected POST would arrive as a GET without its body: it counts as refused."""


_opener = urllib.request.build_opener(_NoRedirects)


def _post(url: str, headers: Mapping[str, str], body: bytes) -> None:
    """Raise unless the answer is 2xx."""
    own = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    request = urllib.request.Request(url, body, {**own, **headers}, method="POST")
    _opener.open(request, timeout=TIMEOUT).close()
