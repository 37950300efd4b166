"""Every error message in the source with its suggestion, as a page of the documentation site.

The site's hooks add the page while the site is built, so it is never out of date.
"""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from deltalakedb import exceptions

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parents[1] / "src" / "deltalakedb"
_INTRODUCTION = """\
# Messages

Every error message in the source, by its class, with the suggestion that is printed after it (`→`). `…`
stands for a name, a number or a path. Search this page for a part of the message that does not change.
[Errors](errors.md) says what the classes mean; the [runbooks](../operate/runbooks.md) have longer procedures.
"""


def page() -> str:
    """The page as Markdown."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for kind, message, suggestion in messages():
        found[kind].add((message, suggestion))
    lines = [_INTRODUCTION]
    for kind in sorted(found):
        doc = (
            (inspect.getdoc(getattr(exceptions, kind)) or "")
            .partition("\n\n")[0]
            .replace("\n", " ")
            .replace("``", "`")
        )
        lines += [f"## {kind}", "", doc, "", "| message | what to do |", "|---|---|"]
        lines += [
            f"| {_cell(message)} | {_cell(suggestion)} |" for message, suggestion in sorted(found[kind])
        ]
        lines.append("")
    return "\n".join(lines)


def messages() -> Iterator[tuple[str, str, str]]:
    """Class, message and suggestion of every error that is made with a literal message."""
    kinds = {
        name
        for name, found in vars(exceptions).items()
        if inspect.isclass(found) and issubclass(found, exceptions.DeltaSqlError)
    }
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                message = _text(node.args[0]) if node.args else ""
                hints = {k.arg: _text(k.value) for k in node.keywords}
                if any(c.isalpha() for c in message):
                    by_command = f" On the command line: {hints['command']}" if "command" in hints else ""
                    yield node.func.id, message, hints.get("suggestion", "") + by_command


def _text(node: ast.expr) -> str:
    """A text as users see it, with `…` for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=parts):
            joined = "".join(p.value if isinstance(p, ast.Constant) else "…" for p in parts)
            return " ".join(str(joined).split())
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{_text(left)} {_text(right)}".strip()
    return ""


def _cell(text: str) -> str:
    escaped = text.replace("|", "\\|").replace("<", "&lt;")
    return escaped if "`" in escaped else escaped.replace("*", "\\*").replace("_", "\\_")
