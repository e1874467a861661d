"""Doors with TLS in front of servers that are built without it, and who vouches for them."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


def openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)


def make_certificates(directory: Path) -> None:
    """An authority of our own (`ca.pem`), and what it says of this host (`tls.pem`, `tls.key`)."""
    # Python 3.13 and newer refuse an authority without a key usage, and who does not name its key.
    (directory / "names").write_text(
        "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    key = ("-newkey", "rsa:2048", "-nodes")
    authority = ("-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem")
    usage = ("-addext", "keyUsage=critical,keyCertSign")
    openssl(directory, "req", "-x509", *key, *authority, *usage, "-days", "2")
    openssl(directory, "req", *key, "-subj", "/CN=test", "-keyout", "tls.key", "-out", "tls.csr")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl(directory, "x509", "-req", "-in", "tls.csr", *signing, "-out", "tls.pem", "-days", "2")


@asynccontextmanager
async def tls_door(port: int, certificates: Path) -> AsyncIterator[int]:
    """The port of a door in front of a server's."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "tls.pem", certificates / "tls.key")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        back = asyncio.ensure_future(_pour(inner_reader, writer))
        try:
            await _pour(reader, inner_writer)
        except OSError:
            pass
        finally:
            inner_writer.close()
            await asyncio.gather(back, return_exceptions=True)
            writer.close()

    door = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with door:
        yield door.sockets[0].getsockname()[1]


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
