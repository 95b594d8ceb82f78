"""Checks the English of the docs and docstrings, as far as a program can.

    python scripts/prose.py [FILE...]

Finds words that readers stumbled over, and sentences of more than 40 words, outside code and tables. Prints
`file:line: what to do`; exits with 1 if there is anything.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LONGEST: Final = 40
WORDS: Final = (
    (r"\bpapers?\b", "say documentation, page or document"),
    (r"\bWh(?:atever|ichever)\b|\b[Ww]ho(?:ever|mever)\b", "name who or what it is"),
    (r"(?:^|[.:;] )Who (?:needs|wants|has|reads|writes|uses)\b", "begin with the subject: 'if you need'"),
    (r"(?<!design )\b[Tt]he documents'", "say whose: Kafka's design documents"),
    (r"\ball else\b", "say what: 'everything else' or 'the rest of ...'"),
    (r"\bis so anyway\b", "say what is so"),
    (r"\bas it stands\b|\bas they stand\b", "say unchanged"),
    (r"\bon the way\b", "say when: 'during installation'"),
    (r"\bbehind (?:all|the last|it)\b", "say after, or past the last offset"),
    (r"\bof an own\b|\bof its own accord\b", "say its own, or by itself"),
    (
        r"\b(?:utili[sz]e|leverage|in order to|please note|simply|obviously)\b",
        "leave it out, or say it plainly",
    ),
    (r"\bfor ever\b", "say forever, or without a limit"),
    (r"\b[Ii]n the wild\b|\bhouse\b|\brooms\b", "say package, module or code"),
)
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.S | re.M)
_LEFT_OUT: Final = (
    re.compile(r"<!--.*?-->", re.S),
    re.compile(r"`[^`\n]+`"),
    re.compile(r"\]\([^)]*\)"),
    re.compile(r"^\|.*$", re.M),
    re.compile(r"^ {4,}.*$", re.M),
    re.compile(r"^.*\w  +\w.*$", re.M),  # columns
    re.compile(r"<[^>]+>"),
)
_ENDS: Final = re.compile(r"[.!?:;](?=\s|$)|\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )")


def findings(text: str) -> Iterator[tuple[int, str]]:
    """The line and the advice for each finding in a page."""
    plain = _FENCE.sub(_blank, text)
    for left_out in _LEFT_OUT:
        plain = left_out.sub(_blank, plain)
    for pattern, advice in WORDS:
        for match in re.finditer(pattern, plain):
            yield plain.count("\n", 0, match.start()) + 1, f"{match[0].strip()!r}: {advice}"
    start = 0
    for end in [*_ENDS.finditer(plain), None]:
        stop = end.start() if end else len(plain)
        words = re.findall(r"[\w'-]+", plain[start:stop])
        if len(words) > LONGEST:
            line = plain.count("\n", 0, start) + 1
            yield line, f"{len(words)} words in a sentence: '{' '.join(words[:5])} ...'"
        start = end.end() if end else stop


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Each docstring of a module, and the line before its first."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno - 1, text


def _findings(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix != ".py":
        yield from findings(path.read_text())
        return
    for before, text in docstrings(path.read_text()):
        for line, advice in findings(text):
            yield before + line, advice


def _blank(match: re.Match[str]) -> str:
    """As many characters and lines, without a word."""
    return re.sub(r"[^\n]", " ", match[0])


def main(names: list[str]) -> int:
    paths = [Path(name) for name in names] or sorted(
        {
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "examples").rglob("*.md"),
            *(ROOT / "embedlog").rglob("*.py"),
        }
        - {ROOT / "CHANGELOG.md"}  # what was written then
    )
    count = 0
    for path in paths:
        for line, advice in sorted(_findings(path)):
            print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {advice}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
