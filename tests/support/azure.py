"""An Azure container on Azurite, the emulator, where `make azurite` has installed it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import re
import subprocess
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT = "devstoreaccount1"
#: the emulator accepts only its own account, whose key everybody knows
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_READY = re.compile(r"listens? on (http://\S+)")


def program() -> Path | None:
    """The emulator's program, or None where it is not installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = cache / "deltasql" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    return found if found.exists() else None


@contextmanager
def azurite(program: Path) -> Iterator[str]:
    """The address of an emulator that forgets everything at the end."""
    command = [str(program), "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        told = ""
        while (ready := _READY.search(told)) is None:
            line = process.stdout.readline()
            assert line, f"Azurite ended: {told}"
            told += line
        yield ready[1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def azure_options(endpoint: str, **options: str) -> dict[str, str]:
    """Storage options for the emulator; nothing is retried by the client."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
        "max_retries": "0",
        "timeout": "20s",
        **options,
    }


def create_container(endpoint: str, name: str) -> None:
    """Make an empty container, signed by the account's key as Azure wants it."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03", "Content-Length": "0"}
    canonical = "\n".join(f"{key}:{headers[key]}" for key in ("x-ms-date", "x-ms-version"))
    # verb, eleven headers that are empty here, those of Azure's own, the resource with its parameters
    text = "PUT" + "\n" * 12 + f"{canonical}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
    with connection.getresponse() as answer:
        content = answer.read()
        assert answer.status == 201, content
    connection.close()
