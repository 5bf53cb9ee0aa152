"""What a run sends to be let in. It is in no file that it writes, in no report, and in no command line of its own."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from typing import Self

from loadgen.access import Access, Headers, basic
from loadgen.settings import Settings


@dataclass(frozen=True, slots=True)
class Keys:
    """`api` opens /v1; `admin` opens a paged-engine's own routes, /engine, and /v1 too. None: not given.

    The rest goes with every request, whatever it asks; `user` is the name and password in an address, with that, and
    goes to that server alone.
    """

    api: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)
    headers: Headers = field(default=(), repr=False)
    user: tuple[str, str, str] | None = field(default=None, repr=False)
    ca_file: str | None = None
    insecure: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """As a command was given them: a key itself goes before one in a file.

        Raises `argparse.ArgumentTypeError` for what does not go together.
        """
        api = arguments.api_key if arguments.api_key is not None else arguments.api_key_file
        admin = arguments.admin_key if arguments.admin_key is not None else arguments.admin_key_file
        named = {name.lower(): (name, value) for name, value in (*arguments.header_file, *arguments.header)}
        user = getattr(arguments.url, "user", None)
        ways = {
            "--api-key": api is not None or admin is not None,
            "--url with a user and password": user is not None,
            "--header 'Authorization: ...'": "authorization" in named,
        }
        if len(given := [way for way, is_given in ways.items() if is_given]) > 1:
            raise argparse.ArgumentTypeError(f"{' and '.join(given)}: give one of them; each says who asks")
        if arguments.ca_file is not None and arguments.insecure:
            raise argparse.ArgumentTypeError("--ca-file and --insecure: give one of them")
        whose = None if user is None else (str(arguments.url), *user)
        return cls(api, admin, tuple(named.values()), whose, arguments.ca_file, arguments.insecure)

    def at(self, url: str) -> Keys:
        """Those of the server at that address."""
        if self.user is None:
            return self
        whose, *user = self.user
        own = (("Authorization", basic(*user)),) if url == whose else ()
        return replace(self, headers=(*self.headers, *own), user=None)

    def as_before(self, settings: Settings) -> Keys:
        """For a run that goes on: certificates are believed as before where nothing else is said."""
        if self.ca_file is not None or self.insecure:
            return self
        return replace(self, ca_file=settings.ca_file, insecure=settings.insecure)

    @property
    def client(self) -> Access:
        """For /v1 and what else clients may ask."""
        return self._access(self.api if self.api is not None else self.admin)

    @property
    def engine(self) -> Access:
        """For /engine."""
        return self._access(self.admin if self.admin is not None else self.api)

    def _access(self, key: str | None) -> Access:
        return Access(key, self.headers, self.ca_file, self.insecure)


NO_KEYS = Keys()
