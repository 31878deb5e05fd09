"""Write docs/museum.md."""

from __future__ import annotations

from .page import PAGE, render

PAGE.write_text(render(), encoding="utf-8")
print(f"wrote {PAGE}")
