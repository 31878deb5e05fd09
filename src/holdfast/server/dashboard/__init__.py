"""The page at `/`: files as they lie here, and what a browser may do with them.

They need no key and say nothing. What they show comes from the routes beside them, which ask for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..call import Call

HERE = Path(__file__).parent
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # nothing from elsewhere, nothing inline, no text that becomes markup, no frame around it
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class File:
    kind: str
    content: bytes


def _read() -> dict[str, File]:
    found = (path for path in sorted(HERE.iterdir()) if path.suffix in KINDS)
    files = {f"/dashboard/{path.name}": File(KINDS[path.suffix], path.read_bytes()) for path in found}
    return {"/": files.pop("/dashboard/index.html"), **files}


FILES = _read()


async def send(file: File, call: Call) -> None:
    await call.reply_bytes(file.content, file.kind, headers=HEADERS)
