"""S3, Google Cloud Storage and Azure as buckets, through obstore.

Each request is sent once. obstore would repeat a write whose answer was lost, and the repetition
would find the first one's object and report a lost race.

obstore's blocking functions are called in threads of this module. Its asynchronous ones answer from
threads of Rust, and a callback that arrives while the interpreter exits aborts the process (6 of 40
short programs).

obstore's threads do not survive a fork: a call in the child would hang. So the child gets an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct
from obstore.exceptions import NotModifiedError
from obstore.store import AzureStore, GCSStore, S3Store

from mainspring.core.clock import BootClock, Clock
from mainspring.errors import InvalidInput, StoreError, StoreUnavailable
from mainspring.stores.objects import self_test
from mainspring.stores.objects.bucket import UNCHANGED, Blob, ClockReading, Listed, Unchanged
from mainspring.stores.objects.obstore_errors import Failure, StorageErrors
from mainspring.stores.objects.url import Address, Credentials, parse_endpoint

if TYPE_CHECKING:
    from botocore.session import Session
    from obstore import GetOptions, PutMode, UpdateVersion
    from obstore.store import ClientConfig, RetryConfig, S3Credential

log = logging.getLogger("mainspring")

T = TypeVar("T")
_Client = S3Store | GCSStore | AzureStore

_CONNECT_TIMEOUT: Final = 5.0
_NO_RETRIES: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(0)}
_MOST_REQUESTS: Final = 16
"""Requests that are under way at the same time."""
_KEYS_PER_REQUEST: Final = 1000
"""Keys that one request of S3 lists or deletes."""
_LOST_RACE_CODES: Final = frozenset({"BlobAlreadyExists", "ConditionalRequestConflict"})
"""Codes of 409 that say for sure that the write was not done, because of another one. S3 answers
ConditionalRequestConflict while a conflicting write is under way."""

_runtime_used = False
_runtime_used_before_fork = False


def _mark_fork() -> None:
    global _runtime_used_before_fork
    _runtime_used_before_fork = _runtime_used


os.register_at_fork(after_in_child=_mark_fork)


class ObstoreBucket:
    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self.kind = address.scheme
        self.location = address.location
        self.requests: Counter[str] = Counter()
        self.clock: Clock = clock or BootClock()
        self.write_interval = 1.0 if address.scheme == "gs" else 0.0
        self._address = address
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._errors = StorageErrors(address)
        self._client: _Client | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.endpoint = ""
        """The address of the storage and the bucket. Known once it is open."""
        self._process = 0

    async def open(self, *, create: bool = True) -> None:
        """Connect, and prove that the storage obeys conditions, unless somebody did so recently.

        With `create=False` nothing is written where there is no store.
        """
        global _runtime_used
        if self._client is not None:
            return
        if _runtime_used_before_fork:
            raise StoreError(
                "object storage was in use in the process that this one was forked from, and its"
                " client does not work in a fork. Open the store in each process after the fork and"
                ' not before, or start this process by the method "spawn"'
            )
        _runtime_used = True
        self._process = os.getpid()
        self._client, self.endpoint = await self._connect()
        self._threads = ThreadPoolExecutor(_MOST_REQUESTS, "mainspring-objects")
        try:
            await self_test.check_conditions(self, self.endpoint, create=create)
        except BaseException:
            await self.close()
            raise
        self._errors.connected = True

    async def close(self) -> None:
        """Wait for the requests that are under way."""
        self._client = None
        threads, self._threads = self._threads, None
        if threads is not None and self._process == os.getpid():
            await asyncio.to_thread(threads.shutdown)

    async def get(self, key: str, unless_etag: str | None = None) -> Blob | Unchanged | None:
        client = self._open_client()
        self.requests["get"] += 1
        options: GetOptions = {}
        if unless_etag is not None:
            options["if_none_match"] = self._conditions(unless_etag)["e_tag"]

        def read() -> Blob:
            result = client.get(self._path(key), options=options)
            return Blob(bytes(result.bytes()), self._etag(dict(result.meta)))

        try:
            return await self._run(read)
        except NotModifiedError:
            return UNCHANGED
        except Exception as error:
            failure = Failure.of(error)
            if failure.is_missing_object:
                return None
            raise self._errors.translate(failure, "get") from None

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        client = self._open_client()
        self.requests["put"] += 1
        mode: PutMode = "create" if expected_etag is None else self._conditions(expected_etag)
        try:
            result = await self._run(
                lambda: client.put(self._path(key), data, mode=mode, use_multipart=False)
            )
        except Exception as error:
            failure = Failure.of(error)
            if failure.status == 412 or failure.code in _LOST_RACE_CODES:
                return None
            if expected_etag is not None and failure.is_missing_object:
                return None
            raise self._errors.translate(failure, "put") from None
        return self._etag(dict(result))

    async def delete(self, keys: Sequence[str]) -> None:
        client = self._open_client()
        paths = [self._path(key) for key in keys]
        if self.kind == "s3":
            for start in range(0, len(paths), _KEYS_PER_REQUEST):
                await self._delete(client, paths[start : start + _KEYS_PER_REQUEST])
            return
        for start in range(0, len(paths), _MOST_REQUESTS):
            some = paths[start : start + _MOST_REQUESTS]
            await asyncio.gather(*(self._delete(client, [path]) for path in some))

    async def _delete(self, client: _Client, paths: list[str]) -> None:
        self.requests["delete"] += 1
        try:
            await self._run(lambda: client.delete(paths))
        except Exception as error:
            failure = Failure.of(error)
            if not failure.is_missing_object:
                raise self._errors.translate(failure, "delete") from None

    async def list_objects(self, folder: str, limit: int | None = None) -> list[Listed]:
        client = self._open_client()
        listed: list[Listed] = []
        try:
            below = self._path(folder).rstrip("/") or None
            pages = client.list(below, chunk_size=_KEYS_PER_REQUEST)
            while limit is None or len(listed) < limit:
                self.requests["list"] += 1
                page = await self._run(lambda: next(pages, ()))
                for meta in page:
                    key = meta["path"].removeprefix(self._prefix)
                    listed.append(Listed(key, meta["last_modified"]))
                if len(page) < _KEYS_PER_REQUEST:
                    break
        except Exception as error:
            raise self._errors.translate(Failure.of(error), "list") from None
        return listed[:limit]

    async def read_clock(self) -> ClockReading | None:
        self._open_client()
        self.requests["head"] += 1
        answer = await asyncio.to_thread(
            _send_head, self.endpoint, self._address.timeout, self.clock.monotonic
        )
        return answer.reading()

    # The client

    def _open_client(self) -> _Client:
        if self._client is None:
            raise StoreError(f"{self.location} is not open")
        if self._process != os.getpid():
            raise StoreError(
                f"{self.location} was opened before this process was forked; open a store of its"
                " own in the child, and start the child by spawn"
            )
        return self._client

    async def _connect(self) -> tuple[_Client, str]:
        """A client, and the address whose answers have the storage's date."""
        try:
            match self.kind:
                case "s3":
                    return await self._connect_s3()
                case "gs":
                    return self._connect_gcs()
                case _:
                    return self._connect_azure()
        except (StoreError, InvalidInput):
            raise
        except Exception as error:
            raise self._errors.translate(Failure.of(error), "open") from None

    def _client_options(self, endpoint: str | None) -> ClientConfig:
        timeout = self._address.timeout
        return {
            "timeout": timedelta(seconds=timeout),
            "connect_timeout": timedelta(seconds=min(timeout, _CONNECT_TIMEOUT)),
            "allow_http": (endpoint or "").startswith("http://"),
            "user_agent": "mainspring",
        }

    async def _connect_s3(self) -> tuple[_Client, str]:
        address = self._address
        session = find_profile(address.profile)
        profile = {} if session is None else session.get_scoped_config()
        has_keys = "AWS_ACCESS_KEY_ID" in os.environ and address.profile is None
        provider: Callable[[], S3Credential] | None = None
        if address.credentials is not None:
            provider = self._keys_of_url(address.credentials)
        elif session is not None and not has_keys:
            provider = await asyncio.to_thread(keys_of_profile, session)
        endpoint = address.endpoint
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
            endpoint = endpoint or parse_endpoint(os.environ.get(name) or None, name)
        if endpoint is None:
            endpoint = parse_endpoint(profile.get("endpoint_url"), "endpoint_url of the profile")
        region = (
            address.region
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or profile.get("region")
            or (None if endpoint else await self._find_region())
            or "us-east-1"
        )
        in_path = address.path_style
        if in_path is None:
            in_path = endpoint is not None or "." in address.bucket
        base = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
        scheme, _, host = base.partition("://")
        place = f"{base}/{address.bucket}" if in_path else f"{scheme}://{address.bucket}.{host}"
        client = S3Store(
            address.bucket,
            endpoint=base if in_path else place,
            aws_endpoint_url_s3=base if in_path else place,
            region=region,
            virtual_hosted_style_request=not in_path,
            client_options=self._client_options(base),
            retry_config=_NO_RETRIES,
            credential_provider=provider,
        )
        return client, place

    def _keys_of_url(self, keys: Credentials) -> Callable[[], S3Credential]:
        log.warning(
            "the URL of %s has credentials in it, and others may see a URL: in the list of"
            " processes, in a shell's history, in configuration. Set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY in the environment instead, or use a profile or a role",
            self.location,
        )
        return lambda: _s3_keys(keys.access_key_id, keys.secret_access_key)

    async def _find_region(self) -> str | None:
        """Ask S3 for the bucket's region, which it says to everybody."""
        url = f"https://s3.amazonaws.com/{self._address.bucket}"
        self.requests["head"] += 1
        answer = await asyncio.to_thread(_send_head, url, 5.0, self.clock.monotonic)
        return answer.headers.get("x-amz-bucket-region")

    def _connect_gcs(self) -> tuple[_Client, str]:
        address = self._address
        base = address.endpoint or "https://storage.googleapis.com"
        options: dict[str, Any] = {"base_url": address.endpoint} if address.endpoint else {}
        client = GCSStore(
            address.bucket,
            client_options=self._client_options(address.endpoint),
            retry_config=_NO_RETRIES,
            **options,
        )
        return client, f"{base}/{address.bucket}"

    def _connect_azure(self) -> tuple[_Client, str]:
        address = self._address
        account = address.account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if account is None:
            raise StoreError(
                f"{self.location} does not say which storage account: write az://container/prefix"
                "?account=name, or set AZURE_STORAGE_ACCOUNT_NAME"
            )
        base = address.endpoint or f"https://{account}.blob.core.windows.net"
        options: dict[str, Any] = {"endpoint": address.endpoint} if address.endpoint else {}
        client = AzureStore(
            address.bucket,
            account_name=account,
            client_options=self._client_options(address.endpoint),
            retry_config=_NO_RETRIES,
            **options,
        )
        return client, f"{base}/{address.bucket}"

    # Names, tags and times

    async def _run(self, call: Callable[[], T]) -> T:
        """Make a call in a thread. The client has its own timeout; this one also covers the search
        for credentials. If the caller is cancelled, the call still finishes in its thread."""
        assert self._threads is not None
        future = asyncio.wrap_future(self._threads.submit(call))
        async with asyncio.timeout(self._address.timeout + 10):
            return await asyncio.shield(future)

    def _path(self, key: str) -> str:
        return self._prefix + key

    def _etag(self, meta: dict[str, Any]) -> str:
        """The entity tag. Google compares generations in writes, and tags in reads."""
        tag, version = meta.get("e_tag"), meta.get("version")
        if self.kind == "gs":
            return f"{tag or ''} {version or ''}"
        return str(tag)

    def _conditions(self, etag: str) -> UpdateVersion:
        if self.kind == "gs":
            tag, _, version = etag.rpartition(" ")
            return {"e_tag": tag, "version": version}
        return {"e_tag": etag}


# Profiles of AWS. obstore does not read `~/.aws/config` and `~/.aws/credentials`; botocore does, as
# the AWS CLI does. It takes 31 MB, so it is needed only where a profile is used.


def find_profile(name: str | None) -> Session | None:
    """The profile of this name, or the one that the environment names (`AWS_PROFILE`), or the
    default one if there is one. A profile that was named must exist."""
    named = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    try:
        import botocore.session
    except ModuleNotFoundError:
        if named is None:
            return None
        raise StoreError(
            f"botocore reads the AWS profile {named!r}, and it is missing: pip install botocore. Or"
            " set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, and no profile"
        ) from None
    session = botocore.session.Session(profile=named)
    with _told_by_botocore():
        session.get_scoped_config()
        return session if named or "default" in session.available_profiles else None


def keys_of_profile(session: Session) -> Callable[[], S3Credential] | None:
    """What gives the keys of the profile, again when they have expired; None if it has none (it may
    have a region alone). It may run a command or call AWS, and blocks."""
    with _told_by_botocore():
        credentials = session.get_credentials()
    if credentials is None:
        return None

    def keys() -> S3Credential:
        with _told_by_botocore():
            frozen = credentials.get_frozen_credentials()
        ends = getattr(credentials, "_expiry_time", None)
        return _s3_keys(frozen.access_key, frozen.secret_key, frozen.token, ends)

    return keys


def _s3_keys(
    access: str, secret: str, token: str | None = None, expires_at: datetime | None = None
) -> S3Credential:
    return {
        "access_key_id": access,
        "secret_access_key": secret,
        "token": token,
        "expires_at": expires_at,
    }


@contextlib.contextmanager
def _told_by_botocore() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except BotoCoreError as error:
        raise StoreError(f"the AWS profile cannot be used: {error}") from None


class _Answer(Struct, frozen=True):
    """The answer to a HEAD request: its headers, and when it was sent and answered."""

    headers: Mapping[str, str]
    sent: float
    answered: float

    def reading(self) -> ClockReading:
        """The storage's clock showed at least the date when it answered, and less than a second
        more. All servers of one storage are taken for one clock."""
        date = self._date()
        latest = date + timedelta(seconds=1 + self.answered - self.sent)
        return ClockReading(self.answered, date, latest)

    def _date(self) -> datetime:
        text = self.headers.get("date")
        if text is None or "age" in self.headers:
            raise StoreUnavailable(
                "the storage's answer has no date of its own, so its clock cannot be read. A proxy"
                " in between has to pass the Date header on, and must not cache answers"
            )
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            raise StoreUnavailable(f"the storage's answer has the date {text!r}") from None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _send_head(url: str, timeout: float, monotonic: Callable[[], float]) -> _Answer:
    """Send a HEAD request and take any answer. Blocks.

    The request is not signed: a storage that refuses it also sends its date, and on some services a
    signature needs permissions that reads and writes do not need. The time counts from the moment
    when the connection is there, so that it does not include the handshakes.
    """
    parts = urlsplit(url)
    connection = _connection(url, timeout)
    try:
        connection.connect()
        sent = monotonic()
        connection.request("HEAD", parts.path or "/", headers={"Cache-Control": "no-cache"})
        answer = connection.getresponse()
        answered = monotonic()
        headers = {name.lower(): value for name, value in answer.getheaders()}
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(
            f"the clock of {parts.scheme}://{parts.netloc} cannot be read: there was no answer"
            f" ({error or type(error).__name__})"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            connection.close()
    return _Answer(headers, sent, answered)


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to the URL's server, through the proxy that the environment names."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    is_secure = parts.scheme == "https"
    make = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return make(host, port, timeout=timeout)
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = make(through.hostname or "", through.port or 80, timeout=timeout)
    connection.set_tunnel(host, port)
    return connection
