"""Decides which addresses a webhook may call: the public internet, and what the operator allows.

A pure check of one address. It recognises IPv4 addresses inside IPv6 (mapped, compatible, 6to4,
NAT64, Teredo), shared and reserved ranges, and the metadata services of clouds. The transport
checks the address that it is about to connect to, so neither a name that resolves to another
address the second time nor an unusual spelling (`0x7f.1`) gets past it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from mainspring.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_HOST = re.compile(r"(\*\.)?([a-z0-9_-]+\.)*(?!\d+$|0x[0-9a-f]*$)[a-z0-9_-]+", re.ASCII)
"""A name as URLs have it. One that ends with a number is a misspelt address: no host has it."""

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_SPECIAL: tuple[tuple[Network, str], ...] = (
    (IPv4Network("168.63.129.16/32"), "a cloud's own service"),
    (IPv4Network("169.254.0.0/16"), "a link-local or metadata address"),
    (IPv4Network("100.100.100.200/32"), "a cloud's own service"),
    (IPv4Network("192.0.0.0/24"), "a reserved address"),
    (IPv4Network("192.88.99.0/24"), "a reserved address"),
    (IPv6Network("2001::/23"), "a reserved address"),
    (IPv6Network("2001:db8::/32"), "a reserved address"),
    (IPv6Network("3fff::/20"), "a reserved address"),
    (IPv6Network("5f00::/16"), "a reserved address"),
)


class AllowList(Struct, frozen=True):
    """What the operator allows webhooks to call outside the public internet."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, given: Iterable[str]) -> AllowList:
        """From host names (`billing.internal`, `*.internal`), addresses and CIDR ranges."""
        hosts, networks = set(), []
        for text in [given] if isinstance(given, str) else given:
            entry = str(text).strip().lower().rstrip(".")
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if not _HOST.fullmatch(entry):
                    why = f" ({error})" if "/" in entry and "//" not in entry else ""
                    raise InvalidInput(
                        "an entry of the allow list is a host name (billing.internal, *.internal),"
                        " an address or a range (10.0.0.0/8), without scheme, port or brackets, not"
                        f" {text!r}{why}"
                    ) from None
                hosts.add(entry)
        return cls(frozenset(hosts), tuple(networks))

    def allows_host(self, host: str) -> bool:
        """Whether a host is allowed by its name, whatever its address."""
        host = host.lower().rstrip(".")
        if host in self.hosts:
            return True
        return any(f"*{host[at:]}" in self.hosts for at, c in enumerate(host) if c == ".")

    def allows_address(self, address: Address) -> bool:
        return any(
            form in network
            for form in _forms(address)
            for network in self.networks
            if network.version == form.version
        )

    def refusal(self, address: str, host: str = "") -> str | None:
        """Why this address must not be called; None if it may be."""
        checked = ip_address(address)
        why = why_refused(checked)
        if why is None or self.allows_host(host) or self.allows_address(checked):
            return None
        return f"{address} ({why})"

    def refusal_of_host(self, host: str) -> str | None:
        """Why a host must not be called, as far as its text tells without resolving it."""
        name = host.lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            if self.allows_host(name) or self.allows_address(IPv4Address("127.0.0.1")):
                return None
            return f"{host} (this machine itself)"
        try:
            return self.refusal(host.strip("[]"), host.strip("[]"))
        except ValueError:
            return None  # a name: its addresses are checked when it is called


def is_literal(host: str) -> bool:
    """Whether a URL's host is an address, not a name."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def why_refused(address: Address) -> str | None:
    """Why an address must not be called; None for one of the public internet."""
    for form in _forms(address):
        why = _why_special(form)
        if why is not None:
            return why
    return None


def _forms(address: Address) -> list[Address]:
    """The address without its zone, or the IPv4 address inside it."""
    if isinstance(address, IPv4Address):
        return [address]
    plain = IPv6Address(int(address))
    inner = plain.ipv4_mapped
    if inner is None and plain in _SIX_TO_FOUR:
        inner = plain.sixtofour
    if inner is None and plain in _NAT64:
        inner = IPv4Address(int(plain) & 0xFFFF_FFFF)
    return [plain] if inner is None else [inner]


def _why_special(address: Address) -> str | None:
    for network, why in _SPECIAL:
        if address.version == network.version and address in network:
            return why
    if address.is_loopback or address.is_unspecified:
        return "this machine itself"
    if address.is_link_local:
        return "a link-local or metadata address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_private:
        return "a private address"
    if not address.is_global or address.is_reserved:
        return "a reserved address"
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "a reserved address"
    return None
