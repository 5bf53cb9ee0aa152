"""The OpenAPI document of this server, made from its routes and the structs that they decode."""

from __future__ import annotations
