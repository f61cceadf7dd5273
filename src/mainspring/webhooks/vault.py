"""Encrypts secrets at rest with AES-256-GCM. Keys can be rotated.

An encrypted secret names its key by an id, which is a hash of the key. So several keys can be in
use: the first encrypts, each of them decrypts. The job, the header and the origin of a secret are
bound to it as associated data, so a row edited by hand cannot move a secret to another job, header
or host.

Keys come from the settings, from the environment (MAINSPRING_SECRET_KEY: one key, or several
separated by commas, the newest first), and on the embedded store from a file beside the database,
which is created at first use and readable only by its owner. On a shared store without a given key
the store itself keeps one (`Webhooks.load_store_key`). That hides secrets from people who see
single jobs, not from those who can read the whole store.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import secrets
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.core.model import Sealed
from mainspring.errors import InvalidInput, SecretKeyMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger("mainspring")

VARIABLE = "MAINSPRING_SECRET_KEY"

_KEY_BYTES = 32
_NONCE_BYTES = 12
_PREFIX = "whsec_"
_REHEARSING: ContextVar[bool] = ContextVar("mainspring_rehearsing", default=False)


def new_key() -> str:
    """A new random key, in the form that MAINSPRING_SECRET_KEY takes."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def new_signing_secret() -> str:
    """A new signing secret, in the form that Standard Webhooks libraries take."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def signing_bytes(secret: str) -> bytes:
    """The key in a `whsec_…` text: 24 to 64 bytes, as Standard Webhooks requires."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX).encode(), validate=True)
    except (ValueError, AttributeError):
        key = b""
    if not isinstance(secret, str) or not secret.startswith(_PREFIX) or not 24 <= len(key) <= 64:
        raise InvalidInput(
            "a signing secret is whsec_ and then the base64 of 24 to 64 random bytes;"
            " leave it out to have one made, or use new_signing_secret()"
        )
    return key


class Vault:
    """Encrypts and decrypts secrets. Without a key it raises `SecretKeyMissing`, which says what to
    do."""

    def __init__(self, keys: Sequence[bytes] = (), file: Path | None = None) -> None:
        self._given = tuple(keys)
        self._file = file
        self._ciphers: dict[str, AESGCM] = {}
        self._newest: str | None = None
        self._throwaway: str | None = None
        self._load()

    @classmethod
    def of(
        cls,
        given: Sequence[str] = (),
        *,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Vault:
        """A vault with the given keys, those of the environment and those of the file. The file is
        created only if there is no other key to encrypt with."""
        environ = os.environ if environ is None else environ
        texts = [*given, *environ.get(VARIABLE, "").split(",")]
        return cls([_key(text) for text in map(str.strip, texts) if text], file)

    @property
    def is_usable(self) -> bool:
        """Whether there is a key, or a file where one can be created."""
        return self._newest is not None or self._file is not None

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of all keys; the first one encrypts."""
        return tuple(key_id for key_id in self._ciphers if key_id != self._throwaway)

    def add_key(self, text: str) -> None:
        """Use a key that the store keeps: to decrypt, and to encrypt if no other is given."""
        self._given = tuple(dict.fromkeys((*self._given, _key(text))))
        self._load()

    def seal(self, text: str, *bound: str) -> Sealed:
        """Encrypt a secret for one use. `bound` names that use (job, header, origin); `open` needs
        the same values."""
        key_id = self._newest
        if key_id is None and _REHEARSING.get():
            key_id = self._throwaway_id()
        elif key_id is None:
            key_id = self._make_file()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        box = nonce + self._ciphers[key_id].encrypt(nonce, text.encode(), _associated_data(bound))
        return Sealed(key_id, base64.b64encode(box).decode())

    @contextlib.contextmanager
    def rehearse(self) -> Iterator[None]:
        """Meanwhile, if there is no key, encrypt with one that only this object has: for what is
        checked or shown, and not stored."""
        before = _REHEARSING.set(True)
        try:
            yield
        finally:
            _REHEARSING.reset(before)

    def open(self, sealed: Sealed, *bound: str) -> str:
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(sealed.key)
        if cipher is None:
            self._load()  # another process may have made the file since
            cipher = self._ciphers.get(sealed.key)
        what = f"{bound[1]} of job {bound[0]}"
        if cipher is None:
            raise SecretKeyMissing(
                f"{what} was encrypted with the key {sealed.key}, which this process does not have:"
                f" add it to {VARIABLE} after the newest key and a comma, or set the secret again"
            )
        try:
            box = base64.b64decode(sealed.box)
            return cipher.decrypt(
                box[:_NONCE_BYTES], box[_NONCE_BYTES:], _associated_data(bound)
            ).decode()
        except (InvalidTag, ValueError):
            raise SecretKeyMissing(
                f"{what} cannot be decrypted: it was changed, or moved here from elsewhere."
                " Set the secret again"
            ) from None

    def is_outdated(self, sealed: Sealed) -> bool:
        """Whether a secret is encrypted with another key than the newest."""
        return sealed.key != self._newest

    def __repr__(self) -> str:
        return f"Vault(keys={list(self._ciphers)})"

    def _load(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in (*self._given, *_read_file(self._file)):
            self._ciphers.setdefault(_key_id(key), AESGCM(key))
        self._newest = next(iter(self.key_ids), None)

    def _throwaway_id(self) -> str:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if self._throwaway is None:
            key = secrets.token_bytes(_KEY_BYTES)
            self._throwaway = _key_id(key)
            self._ciphers[self._throwaway] = AESGCM(key)
        return self._throwaway

    def _make_file(self) -> str:
        if self._file is None:
            raise SecretKeyMissing(
                "secrets are kept encrypted, and there is no key. Make one:"
                f" `export {VARIABLE}=$(openssl rand -base64 32)`, and set it to the same value in"
                " every process of this store. (Webhooks that are added while a scheduler or client"
                " is open need none: the store keeps a key for them.)"
            )
        draft = _write_draft(self._file, [new_key()])
        try:
            # A hard link creates the file whole, and fails if another process created it first.
            with contextlib.suppress(FileExistsError):
                os.link(draft, self._file)
        finally:
            draft.unlink()
        self._load()
        assert self._newest is not None
        return self._newest


def key_file(database: Path) -> Path:
    """The key file of an embedded store."""
    return Path(f"{database}-secret.key")


def key_id(text: str) -> str:
    """The id by which an encrypted secret names this key."""
    return _key_id(_key(text))


def add_to_key_file(path: Path, text: str | None) -> set[str]:
    """Add a key to the key file, as its oldest, unless it is there. Returns the ids of the file's
    keys."""
    keys = _read_file(path)
    if text is not None and _key(text) not in keys:
        keys.append(_key(text))
        os.replace(_write_draft(path, [base64.b64encode(key).decode() for key in keys]), path)
    return set(map(_key_id, keys))


def _write_draft(path: Path, texts: Sequence[str]) -> Path:
    """A new file with these keys beside `path`, which only its owner may read."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write("".join(f"{text}\n" for text in texts))
        file.flush()
        os.fsync(file.fileno())
    return draft


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        # The message does not quote the text: it may be a key with a typing error.
        raise InvalidInput(
            f"a key in {VARIABLE} is the base64 of {_KEY_BYTES} random bytes;"
            " `openssl rand -base64 32` makes one"
        )
    return key


def _read_file(path: Path | None) -> list[bytes]:
    """The keys in the file, one on each line, the newest first."""
    try:
        if path is None:
            return []
        _warn_if_wide(path)
        return [_key(line) for line in map(str.strip, path.read_text().splitlines()) if line]
    except FileNotFoundError:
        return []
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


@cache
def _warn_if_wide(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        log.warning(
            "%s holds the key of all secrets, and users other than its owner may read it (%04o)."
            " Run: chmod 600 %s",
            path,
            mode,
            shlex.quote(str(path)),
        )


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"mainspring key id\0" + key).hexdigest()[:8]


def _associated_data(parts: Sequence[str]) -> bytes:
    """The associated data. It is unambiguous: no job id, header name or origin has control
    characters."""
    return "\x1f".join(("mainspring", "1", *parts)).encode()
