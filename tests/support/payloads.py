"""Payloads for property tests: every type that the codec keeps, and names that look like tags."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=[]))  # lone surrogates too
zones = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.datetimes(timezones=st.none() | st.just(UTC) | zones),
    st.dates(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.binary(),
)
keys = st.one_of(
    texts,
    st.sampled_from(["$", "$$", "$datetime", "$date", "$uuid", "$decimal", "$bytes", "$$bytes"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
