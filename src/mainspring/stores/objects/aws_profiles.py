"""Reads the profiles of AWS: the files `~/.aws/config` and `~/.aws/credentials`.

obstore reads environment variables and asks for instance roles, but does not read these files. A
profile has keys, or a command that prints them (`credential_process`), or refers to another profile
for keys (`source_profile` without a role). For profiles with a role or single sign-on `botocore` is
used where it is installed.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import S3Credential

_PROCESS_TIMEOUT: Final = 60
_NEEDS_BOTOCORE: Final = ("role_arn", "sso_session", "sso_start_url", "web_identity_token_file")


class Profile:
    """A profile's settings. `credentials` gives keys; it may run a command or call AWS, and blocks.

    It is called again when the keys that it gave have expired.
    """

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self._settings = settings

    @property
    def region(self) -> str | None:
        return self._settings.get("region")

    @property
    def endpoint(self) -> str | None:
        return self._settings.get("endpoint_url")

    def credential_provider(self) -> Callable[[], S3Credential] | None:
        """What gives the profile's keys; None if it has none (it may have a region alone)."""
        if any(name in self._settings for name in _NEEDS_BOTOCORE):
            return self._keys_from_botocore
        if "aws_access_key_id" in self._settings:
            return self._static_keys
        if "credential_process" in self._settings:
            return self._keys_from_process
        return None

    def _static_keys(self) -> S3Credential:
        if "aws_secret_access_key" not in self._settings:
            raise StoreError(f"the AWS profile {self.name!r} has no aws_secret_access_key")
        return {
            "access_key_id": self._settings["aws_access_key_id"],
            "secret_access_key": self._settings["aws_secret_access_key"],
            "token": self._settings.get("aws_session_token"),
            "expires_at": None,
        }

    def _keys_from_process(self) -> S3Credential:
        command = shlex.split(self._settings["credential_process"])
        what = f"credential_process of the AWS profile {self.name!r}"
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_PROCESS_TIMEOUT
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StoreError(f"the {what} could not be run: {type(error).__name__}") from None
        if done.returncode != 0:
            raise StoreError(f"the {what} ended with {done.returncode}: {done.stderr[-300:]}")
        try:
            printed = json.loads(done.stdout)
            expires = printed.get("Expiration")
            return {
                "access_key_id": printed["AccessKeyId"],
                "secret_access_key": printed["SecretAccessKey"],
                "token": printed.get("SessionToken"),
                "expires_at": datetime.fromisoformat(expires) if expires else None,
            }
        except (ValueError, KeyError, AttributeError, TypeError):
            # What was printed may hold the secret: it is not shown.
            raise StoreError(f"the {what} did not print credentials as JSON") from None

    def _keys_from_botocore(self) -> S3Credential:
        try:
            from botocore.session import Session  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError:
            raise StoreError(
                f"the AWS profile {self.name!r} has a role or single sign-on, which needs"
                " botocore: pip install botocore. Or let the AWS CLI log in, with `credential_"
                f"process = aws configure export-credentials --profile {self.name}` in a profile of"
                " its own"
            ) from None
        credentials: Any = Session(profile=self.name).get_credentials()
        if credentials is None:
            raise StoreError(f"botocore finds no credentials for the AWS profile {self.name!r}")
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": getattr(credentials, "_expiry_time", None),
        }


def find_profile(name: str | None) -> Profile | None:
    """The profile of this name, or the one that the environment names (`AWS_PROFILE`), or the
    default one if there is one. A profile that was named must exist."""
    named = name or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    files = (
        _file("AWS_CONFIG_FILE", "config"),
        _file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
    )
    profiles: dict[str, dict[str, str]] = {}
    for path in files:
        for section, settings in _read(path).items():
            profiles.setdefault(section, {}).update(settings)
    wanted = named or "default"
    if wanted not in profiles:
        if named is None:
            return None
        known = ", ".join(sorted(profiles)) or "none"
        raise StoreError(
            f"there is no AWS profile {named!r} in {files[0]} or {files[1]}; profiles are {known}"
        )
    settings = profiles[wanted]
    source = settings.get("source_profile")
    if source and "role_arn" not in settings:
        settings = {**profiles.get(source, {}), **settings}
    return Profile(wanted, settings)


def _file(variable: str, name: str) -> Path:
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else Path.home() / ".aws" / name


def _read(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise StoreError(f"{path} cannot be read ({type(error).__name__})") from None
    profiles = {}
    for section in parser.sections():
        name = section.removeprefix("profile ").strip()
        if not section.startswith(("sso-session ", "services ")):
            profiles[name] = dict(parser[section])
    return profiles
