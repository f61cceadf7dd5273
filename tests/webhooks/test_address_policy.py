"""Which addresses webhooks may call, in every form that can hide a private one."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import State
from mainspring.errors import InvalidInput
from mainspring.webhooks import WebhookSettings, transport
from mainspring.webhooks.address_policy import AllowList, why_refused
from tests.support.webhook_endpoint import (
    Endpoint,
    call,
    called,
    endpoint,
    response,
    scheduler,
    serving,
)

two_addresses = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8"
)

REFUSED = [
    *("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1"),
    *("172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "169.254.169.254"),
    *("169.254.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.192", "192.0.0.9"),
    *("192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.7"),
    *("203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::10.1.2.3", "64:ff9b:1::1", "64:ff9b:1::8.8.8.8"),
    *("100::1", "2001::1", "2001:0:53aa:64c:0:fbff:80ff:fffe", "2001:db8::1", "2001:10::1"),
    *("2001:20::1", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "3fff::1"),
    *("5f00::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fe80::1%eth0"),
    *("fec0::1", "feff::1", "ff02::1", "ff0e::1", "4000::1", "8000::1"),
]
ALLOWED = [
    *("8.8.8.8", "1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "168.63.129.17"),
    *("2606:2800:220:1:248:1893:25c8:1946", "2001:4860:4860::8888", "2a00:1450:4001::1"),
    *("64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8"),
]


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert why_refused(ip_address(address)) is not None


@pytest.mark.parametrize("address", ALLOWED)
def test_public_addresses_are_allowed(address: str) -> None:
    assert why_refused(ip_address(address)) is None


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_wrapping_an_address_never_makes_it_public(inner: IPv4Address) -> None:
    number = int(inner)
    for outer in (
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
    ):
        assert (why_refused(outer) is None) == (why_refused(inner) is None)


def test_the_allow_list_by_range_and_by_name() -> None:
    allow = AllowList.of(["10.0.0.0/8", "fd00::/8", "192.168.1.7", "Billing.internal", "*.corp"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::7", "192.168.1.7"):
        assert allow.refusal(address) is None
    assert allow.refusal("192.168.1.8") == "192.168.1.8 (a private address)"
    assert allow.refusal("127.0.0.1", "billing.internal.") is None
    assert allow.refusal("127.0.0.1", "a.b.CORP") is None
    assert allow.refusal("127.0.0.1", "corp") is not None
    assert allow.refusal("127.0.0.1", "evil-billing.internal") is not None
    assert allow.refusal("127.0.0.1", "billing.internal.evil.org") is not None


@pytest.mark.parametrize(
    "entry",
    [
        *("10.0.0.1/8", "10.0.0.0/33", "", "two words", "a/b"),
        *("localhost:9999", "[::1]", "*", "http:", "http://localhost", "a.*.b", "*internal"),
        *("10.0.0.256", "127.1", "0x7f.1", "2130706433", "0x7f000001", "user@host"),
    ],
)
def test_an_allow_list_that_cannot_be_meant(entry: str) -> None:
    with pytest.raises(InvalidInput, match="an entry of the allow list"):
        WebhookSettings(allow=[entry])


def test_the_allow_list_may_come_from_the_environment() -> None:
    environ = {"MAINSPRING_ALLOW_PRIVATE": "10.0.0.0/8, billing.internal,"}
    assert WebhookSettings.from_environment(environ).allow == ("10.0.0.0/8", "billing.internal")


# Real calls: what counts is that nobody was connected to.


async def refusal(url: str, **settings: Any) -> str:
    """Why a call was refused: when the job was made, or when it was to be called."""
    async with scheduler(webhooks=WebhookSettings(**settings)) as mainspring:
        try:
            await mainspring.add_job("call", webhook=url, retries=5)
        except InvalidInput as error:
            return str(error)
        run = await call(mainspring)
    assert run.state is State.FAILED
    assert len(run.attempts) == 1, "what an operator must change is not tried again"
    return str(run.error)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "2130706433", "0x7f000001"),
        *("0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1.", "0.0.0.0", "0", "１２７.０.０.１"),
        *("127。0。0。1", "[::ffff:127.0.0.1]", "[::1]", "[0:0:0:0:0:0:0:1]", "[::]"),
    ],
)
async def test_this_machine_is_not_called_however_it_is_spelt(host: str) -> None:
    async with endpoint() as end:
        why = await refusal(f"http://{host}:{end.port}/")
    assert end.connections == 0
    assert "webhooks may not call" in why, why
    assert "allow" in why


async def test_a_name_is_checked_by_the_address_it_stands_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The address is for the operator's log alone: a probe must not learn where hosts lie."""
    _names(monkeypatch, {"inside.test": [["127.0.0.1"]]})
    async with endpoint() as end:
        why = await refusal(f"http://inside.test:{end.port}/")
    assert end.connections == 0
    assert "inside.test was not called: webhooks may not call the address" in why
    assert "--allow-private" in why
    for told in ("127.0.0.1", "this machine"):
        assert told not in why
        assert told in caplog.text


@two_addresses
async def test_a_name_that_changes_its_address_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the first answer is harmless, the second is not."""
    monkeypatch.setattr(transport, "DNS_CACHE_SECONDS", 0)
    _names(monkeypatch, {"rebinding.test": [["127.0.0.2"], ["127.0.0.1"]]})
    made = Endpoint(lambda _: response(200, b"", "Connection: close"))
    async with serving(made.serve) as port:
        webhooks = WebhookSettings(allow=["127.0.0.2/32"])
        async with scheduler(webhooks=webhooks) as mainspring, _on("127.0.0.2", port, made):
            await mainspring.add_job("call", webhook=f"http://rebinding.test:{port}/")
            first = await call(mainspring)
            second = await call(mainspring)
    assert first.state is State.SUCCEEDED
    assert first.attempts[0].detail["response"]["address"] == "127.0.0.2"
    assert second.state is State.FAILED
    assert "webhooks may not call the address that it resolves to" in str(second.error)
    assert made.connections == 1


async def test_the_socket_is_checked_whatever_the_resolver_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if a name had changed between the look at it and the connection."""

    async def lying(self: Any, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        kin = socket.AF_INET
        found = {"hostname": host, "host": "127.0.0.1", "port": port, "family": kin}
        return [{**found, "proto": 0, "flags": 0}]

    monkeypatch.setattr(transport._Resolver, "resolve", lying)
    async with endpoint() as end:
        why = await refusal(f"http://liar.test:{end.port}/")
    assert end.connections == 0
    assert "webhooks may not call the address that it resolves to" in why


@two_addresses
async def test_of_several_addresses_only_those_allowed_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _names(monkeypatch, {"both.test": [["127.0.0.1", "127.0.0.2"]]})
    made, inside = Endpoint(), Endpoint()
    async with serving(inside.serve) as port, _on("127.0.0.2", port, made):
        webhooks = WebhookSettings(allow=["127.0.0.2"])
        async with scheduler(webhooks=webhooks) as mainspring:
            run = await called(mainspring, f"http://both.test:{port}/")
    assert run.state is State.SUCCEEDED
    assert (inside.connections, made.connections) == (0, 1)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint() as end, endpoint() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with scheduler() as mainspring:
            run = await called(mainspring, end.url)
    assert run.state is State.SUCCEEDED
    assert (end.connections, proxy.connections) == (1, 0)


async def test_lookups_that_hang_hold_up_no_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer held one of 32 threads for each name: everybody waited."""
    released = threading.Event()

    def looked_up(host: str, *_: Any) -> Any:
        if host.endswith(".dead") and not released.wait(60):
            raise OSError("no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(transport, "MAX_LOOKUPS", 50)
    resolver = transport._Resolver(AllowList.of(["127.0.0.1"]))
    async with asyncio.timeout(50):
        assert await resolver.resolve("known.test")
        hanging = [asyncio.create_task(resolver.resolve(f"{n}.dead")) for n in range(49)]
        assert await resolver.resolve("new.test")
        hanging += [asyncio.create_task(resolver.resolve(name)) for name in ("49.dead", "b.test")]
        for known in ("known.test", "new.test"):
            assert await resolver.resolve(known)
        assert not any(task.done() for task in hanging)  # b.test waits for a place
        released.set()
        await asyncio.gather(*hanging)


async def test_a_cancelled_call_leaves_its_lookup_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    asked: list[str] = []

    def looked_up(host: str, *_: Any) -> Any:
        asked.append(host)
        released.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    connector = transport._Connector(resolver=transport._Resolver(AllowList.of(["127.0.0.1"])))
    first, second = (asyncio.create_task(connector._resolve_host("a.test", 80)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    released.set()
    async with asyncio.timeout(50):
        [found] = await second
    assert (found["host"], found["port"]) == ("127.0.0.1", 80)
    assert first.cancelled()
    assert asked == ["a.test"]
    await connector.close()


def _names(monkeypatch: pytest.MonkeyPatch, known: dict[str, list[list[str]]]) -> None:
    """A resolver in which some names stand for other addresses each time (the last one stays)."""
    real = socket.getaddrinfo

    def looked_up(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host not in known:
            return real(host, port, *rest, **more)
        answers = known[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)


def _on(host: str, port: int, made: Endpoint) -> Any:
    """The same endpoint on another loopback address too."""

    @asynccontextmanager
    async def serve() -> Any:
        server = await asyncio.start_server(made.serve, host, port)
        try:
            yield
        finally:
            server.close()

    return serve()
