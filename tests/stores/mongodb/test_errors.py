"""Servers that are missing for a while give temporary errors."""

from __future__ import annotations

import socket

import pytest
from pymongo.errors import ConfigurationError

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.errors import translating


async def test_an_unreachable_server_is_a_temporary_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"mongodb://127.0.0.1:{port}/db?timeoutMS=300"
    with pytest.raises(StoreUnavailable, match="no MongoDB server answers") as raised:
        await MongoStore(url).open()
    assert "tried again" not in str(raised.value), "a command that fails does not try again"


def test_a_server_too_old_for_the_driver_is_named() -> None:
    """Such a server is not to be had any more; what the driver says of it is."""
    said = "Server at h:1 reports wire version 6, but this version of PyMongo requires at least 8"
    with (
        pytest.raises(StoreError, match=r"server is too old .* needs 7\.0 or later") as told,
        translating(),
    ):
        raise ConfigurationError(said)
    assert not isinstance(told.value, StoreUnavailable)
