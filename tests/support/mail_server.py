"""A real SMTP server on loopback, with STARTTLS, TLS and a login, that keeps what it is sent."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage


class MailServer:
    def __init__(self, tls: ssl.SSLContext | None, *, wrapped: bool, password: str | None) -> None:
        self.mails: list[EmailMessage] = []
        self.port = 0
        self.logins: list[str] = []
        self.refused = "nobody"
        self.farewell = "221 bye"
        self._tls = tls
        self._wrapped = wrapped
        self._password = password

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secure, known = self._wrapped, self._password is None

        def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())

        say("220 mail ready")
        while line := (await reader.readline()).decode().strip():
            command, _, words = line.partition(" ")
            match command.upper():
                case "EHLO":
                    offers = [] if secure or self._tls is None else ["STARTTLS"]
                    offers += ["AUTH PLAIN"] if self._password and secure else []
                    lines = ["mail", *offers]
                    for at, offer in enumerate(lines):
                        say(f"250{' ' if at + 1 == len(lines) else '-'}{offer}")
                case "STARTTLS":
                    say("220 go ahead")
                    await writer.drain()
                    assert self._tls is not None
                    await writer.start_tls(self._tls)
                    secure = True
                case "AUTH":
                    _, user, password = base64.b64decode(words.split()[1]).decode().split("\0")
                    known = secure and password == self._password
                    self.logins.append(user)
                    say("235 welcome" if known else f"535 no such user {password}")
                case "MAIL" | "RCPT":
                    fine = known and self.refused not in words
                    say("250 fine" if fine else "530 log in first")
                case "DATA":
                    say("354 go on")
                    data = await reader.readuntil(b"\r\n.\r\n")
                    self.mails.append(message_from_bytes(data[:-3], policy=policy.default))
                    say("250 taken")
                case "QUIT":
                    say(self.farewell)
                    await writer.drain()
                    break
                case _:
                    say("250 fine")
        writer.close()


@asynccontextmanager
async def mail_server(
    tls: ssl.SSLContext | None = None, *, wrapped: bool = False, password: str | None = None
) -> AsyncIterator[MailServer]:
    """`tls` is offered by STARTTLS; `wrapped`: the connection begins with it."""
    mail = MailServer(tls, wrapped=wrapped, password=password)
    made = await asyncio.start_server(mail.serve, "127.0.0.1", 0, ssl=tls if wrapped else None)
    async with made:
        mail.port = made.sockets[0].getsockname()[1]
        yield mail
        made.close()
