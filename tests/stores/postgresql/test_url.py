from __future__ import annotations

import pytest

from mainspring.errors import InvalidInput
from mainspring.stores.postgresql.url import PostgresUrl


def test_options_of_our_own_are_not_sent_to_the_server() -> None:
    url = PostgresUrl.of("postgres://me:secret@db:5433/app?sslmode=require&schema=jobs&pool_size=3")
    assert url.conninfo == "postgresql://me:secret@db:5433/app?sslmode=require"
    assert (url.schema, url.pool_size) == ("jobs", 3)
    assert url.listen_url == url.conninfo
    assert "secret" not in url.location


def test_options_of_libpq_are_sent_as_they_are() -> None:
    url = PostgresUrl.of("postgresql://db/app?options=-c%20statement_timeout%3D5s&schema=jobs")
    assert url.conninfo == "postgresql://db/app?options=-c%20statement_timeout%3D5s"


def test_two_names_of_one_store_are_recognised() -> None:
    one = PostgresUrl.of("postgres://me:secret@db/app?sslmode=require")
    other = PostgresUrl.of("postgresql:///app?host=db&port=5432&schema=mainspring")
    assert one.place == other.place
    assert one.place != PostgresUrl.of("postgresql://db/app?schema=jobs").place


def test_hints_may_be_heard_elsewhere_or_not_at_all() -> None:
    assert PostgresUrl.of("postgresql://db/app?listen=false").listen_url is None
    elsewhere = PostgresUrl.of("postgresql://pooler/app?listen_url=postgresql%3A%2F%2Fdb%2Fapp")
    assert elsewhere.listen_url == "postgresql://db/app"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("schema=My-Schema", "no name for a schema"),
        ("schema=a;drop", "no name for a schema"),
        ("prepare=maybe", "prepare is true or false"),
        ("pool_size=0", "pool_size is a number from 1 to 1000"),
    ],
)
def test_a_wrong_option_is_refused(option: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PostgresUrl.of(f"postgresql://db/app?{option}")


@pytest.mark.parametrize("password", ["se@cret", "se@cret#1", "secret#1", "se/cret@x"])
def test_a_password_that_is_not_escaped_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(InvalidInput, match="write @ as %40") as refused:
        PostgresUrl.of(f"postgresql://me:{password}@db/app")
    assert "cret" not in str(refused.value)
