"""The keys that a run sends. They are in no file that it writes, in no report, and in no command line of its own."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Keys:
    """`api` opens /v1; `admin` opens a paged-engine's own routes, /engine, and /v1 too. None: not given."""

    api: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """As a command was given them: a key itself goes before one in a file."""
        return cls(
            arguments.api_key if arguments.api_key is not None else arguments.api_key_file,
            arguments.admin_key if arguments.admin_key is not None else arguments.admin_key_file,
        )

    @property
    def client(self) -> str | None:
        """For /v1 and what else clients may ask."""
        return self.api if self.api is not None else self.admin

    @property
    def engine(self) -> str | None:
        """For /engine."""
        return self.admin if self.admin is not None else self.api


NO_KEYS = Keys()
