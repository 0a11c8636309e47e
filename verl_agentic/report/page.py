"""A run's result as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "pre{background:#f4f4f4;padding:.8rem;overflow-x:auto}img{max-width:100%}"
)


def write_page(path: Path, title: str, command: str, table: str, picture: Path, figures: Mapping[str, Any]) -> None:
    """Write the page: command, table, picture (embedded) and the figures as JSON; all text is escaped."""
    image = base64.b64encode(picture.read_bytes()).decode("ascii")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<h2>Command</h2><pre>{escape(command)}</pre>",
        f"<h2>Before and after</h2><pre>{escape(table)}</pre>",
        f'<h2>Curves</h2><img alt="training curves" src="data:image/png;base64,{image}">',
        f"<h2>Figures</h2><pre>{escape(json.dumps(figures, indent=1))}</pre>",
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    path.write_text(f"{head}<body>{''.join(parts)}</body></html>\n", encoding="utf-8")
