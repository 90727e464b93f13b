"""Source archives made in code: a good one, and the parts that make bad ones."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TOP = "vllm-1.2.3"
GOOD: dict[str, bytes] = {
    "PKG-INFO": b"Name: vllm\n",
    "setup.py": b"print()\n",
    "vllm/__init__.py": b"",
    "vllm/big.bin": bytes(range(256)) * 4096,
    "vllm/model/é.py": "é".encode(),
}
PROGRAM = "setup.py"


def entry(
    name: str,
    data: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    mode: int = 0o664,
    size: int | None = None,
) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member and its content; `size` lies about its length."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data) if size is None else size
    return info, data


def good() -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of the good archive."""
    folders = [TOP, f"{TOP}/vllm", f"{TOP}/vllm/model"]
    made = [entry(name, kind=tarfile.DIRTYPE, mode=0o775) for name in folders]
    return made + [
        entry(f"{TOP}/{path}", data, mode=0o775 if path == PROGRAM else 0o664)
        for path, data in GOOD.items()
    ]


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], *, encoding: str = "utf-8") -> bytes:
    """Return an archive of the members, in the order given, not packed."""
    out = io.BytesIO()
    for info, data in members:
        out.write(info.tobuf(tarfile.PAX_FORMAT, encoding, "surrogateescape"))
        out.write(data + b"\0" * (-len(data) % tarfile.BLOCKSIZE))
    return out.getvalue() + b"\0" * 2 * tarfile.BLOCKSIZE


def pack(data: bytes) -> bytes:
    """Return `data` gzip-compressed, the same bytes each time."""
    return gzip.compress(data, 1, mtime=0)


def sdist() -> bytes:
    """Return the good archive."""
    return pack(tar(good()))
