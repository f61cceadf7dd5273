"""Errors of object storage as errors of Mainspring: what happened, and what to do.

obstore's errors are text, which may hold a signed address. Only the status, the storage's own code
and its own message are taken from it.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from mainspring.errors import StoreError, StoreUnavailable, StoreUnreachable
from mainspring.stores.objects.url import Address

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>|\"(?:code|error)\": ?\"([^\"]{1,100})\"")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_ADDRESS: Final = re.compile(r"(https?://)(?:[^\s?/]*@)?([^\s?/]+)\S*")
_CAUSES: Final = {
    "ConnectionRefused": "it refused the connection, so no server listens there",
    "dns error": "its host name cannot be resolved",
    "NetworkUnreachable": "there is no route to it",
    "HostUnreachable": "no network leads there",
    "ertificate": "its certificate is not trusted",
    "InvalidMessage": "it does not speak TLS: write http:// if that is meant",
    "ConnectTimeout": "it did not accept the connection in time",
    "kind: Connect": "there was no connection",
}
"""Why there is no connection, by words in obstore's error. The first that is found counts."""
_METADATA_HOSTS: Final = (
    "169.254.169.254",
    "169.254.170.",
    "metadata.google.internal",
    "metadata/ident",
)

_MISSING_BUCKET_CODES: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_BAD_KEY_CODES: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefresh"}
    | {"AuthenticationFailed", "InvalidAuthenticationInfo", "InvalidSecurity"}
)
_BUSY_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "ServerBusy", "OperationTimedOut"})

_ACTIONS: Final = {
    "get": "s3:GetObject on {objects} and s3:ListBucket on {bucket} (without s3:ListBucket S3 also"
    " refuses reads of objects that do not exist)",
    "put": "s3:PutObject on {objects}",
    "delete": "s3:DeleteObject on {objects}",
    "list": "s3:ListBucket on {bucket}",
}
_ROLES: Final = {
    "gs": "the role Storage Object User on {bucket}",
    "az": "the role Storage Blob Data Contributor on {bucket}",
}
_CREDENTIALS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile (?profile=… or"
    " AWS_PROFILE; all profiles need `pip install botocore`), or give this machine a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, run `gcloud auth"
    " application-default login`, or give this machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY or AZURE_CLIENT_ID with its secret"
    " and tenant, or give this machine a managed identity",
}
_CREATE_COMMANDS: Final = {
    "s3": "aws s3 mb s3://{name}",
    "gs": "gcloud storage buckets create gs://{name}",
    "az": "az storage container create --name {name}",
}


class Failure(Struct, frozen=True):
    """What an error of obstore says."""

    kind: str
    status: int | None
    code: str
    message: str
    text: str
    """The error in one line, without anything of an address but the host."""
    timed_out: bool = False
    no_connection: str = ""
    """Why there was none."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        text, _, debug = str(error).partition("\n\nDebug source")
        status = _STATUS.search(text)
        code, message = _CODE.search(text), _MESSAGE.search(text)
        line = _ADDRESS.sub(r"\1\2", text.partition("<")[0].partition("{")[0])
        return cls(
            kind=type(error).__name__,
            status=int(status[1]) if status else None,
            code=(code[1] or code[2]) if code else "",
            message=message[1].partition("\n")[0] if message else "",  # Azure adds ids and a time
            text=" ".join(line.split())[:300],
            timed_out=isinstance(error, TimeoutError) or "kind: Timeout" in debug,
            no_connection="" if status else _cause(debug),
        )

    @property
    def server(self) -> str:
        """The scheme and the host that was asked."""
        address = _ADDRESS.search(self.text)
        return address[0] if address else "the server"

    @property
    def is_of_credentials(self) -> bool:
        """Whether the machine's service for credentials answered so, and not the storage."""
        return any(host in self.text for host in _METADATA_HOSTS)

    @property
    def is_missing_object(self) -> bool:
        return (
            self.code not in _MISSING_BUCKET_CODES
            and not self.is_of_credentials
            and (self.status == 404 or (self.status is None and self.kind == "FileNotFoundError"))
        )

    @property
    def words(self) -> str:
        """What the storage said, for the end of a message."""
        parts = [str(self.status or ""), self.code, self.message.rstrip(".")]
        return " ".join(filter(None, parts)) or self.text or self.kind


def _cause(debug: str) -> str:
    if "kind: Timeout" in debug:
        return ""
    return next((cause for words, cause in _CAUSES.items() if words in debug), "")


class StorageErrors:
    """Makes the errors of one bucket. `connected`: it has answered once, so its credentials are
    there."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._what = f"{address.scheme}://{address.bucket}"
        self.connected = False

    def translate(self, failure: Failure, operation: str) -> StoreError:
        place, words = self._address.location, failure.words
        if failure.is_of_credentials:
            return self._no_credentials(words)
        if failure.code in _MISSING_BUCKET_CODES:
            return self._missing_bucket(words)
        if failure.code == "RequestTimeTooSkewed":
            return StoreError(
                f"{place} refuses requests because the clock of this machine is wrong by more than"
                f" 15 minutes. Set it, or let it follow a time server ({words})"
            )
        if failure.status in (401, 403) or failure.code in _BAD_KEY_CODES:
            return self._refused(failure, operation)
        if failure.status == 501:
            return StoreError(
                f"{place} has no conditional writes (If-Match, If-None-Match), which Mainspring"
                f" needs. Use a newer version of that server, or another store ({words})"
            )
        if "redirect" in failure.text.lower() or failure.status in (301, 307, 308):
            return StoreError(
                f"{place} is in another region. Name it: {self._what}/…?region=… ({words})"
            )
        if failure.status == 400 and failure.code not in _BUSY_CODES:
            return StoreError(f"{place} refused a request ({words})")
        if "missing from response" in failure.text:
            return StoreError(
                f"{place} cannot be used: it answers without an entity tag (ETag) or a version,"
                f" which conditional writes need. Use another server, or another store ({words})"
            )
        if operation == "open" and failure.status is None:
            advice = f"; {_CREDENTIALS[self._address.scheme]}" if "Missing" in failure.text else ""
            return StoreError(f"{place} cannot be opened: {failure.text or failure.kind}{advice}")
        if failure.status == 404:
            return self._missing_bucket(words)
        if failure.status in (429, 503) or failure.code in _BUSY_CODES:
            return StoreUnavailable(f"{place} is busy and wants fewer requests ({words})")
        if failure.no_connection:
            return StoreUnreachable(
                f"{place} cannot be reached at {failure.server}: {failure.no_connection}. Check"
                f" {'the endpoint of the URL' if self._address.endpoint else 'the endpoint'}, the"
                " network, the proxy, and that the server runs"
            )
        if failure.timed_out:
            return StoreUnavailable(
                f"{place} gave no answer within {self._address.timeout:g} s. If it is only slow,"
                " raise `timeout` in the URL"
            )
        return StoreUnavailable(f"{place} failed to answer a request ({words})")

    def _no_credentials(self, words: str) -> StoreError:
        place = self._address.location
        if self.connected:
            return StoreUnavailable(
                f"this machine's service for credentials gave none for {place} ({words})"
            )
        return StoreError(
            f"there are no credentials for {place}: {_CREDENTIALS[self._address.scheme]}"
        )

    def _missing_bucket(self, words: str) -> StoreError:
        name = self._address.bucket
        command = _CREATE_COMMANDS[self._address.scheme].format(name=name)
        what = "container" if self._address.scheme == "az" else "bucket"
        return StoreError(
            f"there is no {what} {name!r} at {self._address.location}. Mainspring does not create"
            f" it, because it does not know where and for whom: {command} ({words})"
        )

    def _refused(self, failure: Failure, operation: str) -> StoreError:
        scheme, place = self._address.scheme, self._address.location
        not_known = "failed to authenticate" in failure.message
        if failure.status == 401 or failure.code in _BAD_KEY_CODES or not_known:
            return StoreError(
                f"{place} does not accept the credentials: {_CREDENTIALS[scheme]} ({failure.words})"
            )
        bucket, prefix = self._address.bucket, self._address.prefix
        objects = f"{bucket}/{prefix}/*" if prefix else f"{bucket}/*"
        needed = _ROLES.get(scheme) or _ACTIONS[operation]
        needed = needed.format(bucket=bucket, objects=objects)
        return StoreError(
            f"{place} does not allow this {operation}. The credentials need {needed};"
            f" docs/reference/object-storage.md has the whole policy ({failure.words})"
        )
