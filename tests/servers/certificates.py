"""A certificate authority of a test's own, and a server's certificate for 127.0.0.1, by the `openssl` program."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """`ca`: the file that a client must know; `server`: what a server listens with."""

    ca: Path
    server: ssl.SSLContext


_CONFIGURATION = """[ca]
default_ca = own
[own]
new_certs_dir = .
database = index.txt
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
"""


def make_authority(
    folder: Path, name: str = "IP:127.0.0.1,DNS:localhost", years: tuple[int, int] | None = None
) -> Authority:
    """A new one in `folder`, whose server is called `name`. `years`: from the first day of one to that of another its
    certificate is good; else for two days from now on."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    openssl("req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "server.ext").write_text(f"subjectAltName={name}\n")
    (folder / "ca.cnf").write_text(_CONFIGURATION)
    (folder / "index.txt").touch()
    good = ("-startdate", f"{years[0]}0101000000Z", "-enddate", f"{years[1]}0101000000Z") if years else ("-days", "2")
    openssl(
        *("ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key", "-notext"),
        *("-in", "server.csr", "-out", "server.pem", *good, "-extfile", "server.ext"),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return Authority(folder / "ca.pem", context)
