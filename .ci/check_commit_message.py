"""Checks a commit message: a subject of at most 72 characters, then an empty line before any body.

usage: check_commit_message.py FILE

Git's commit-msg hook calls it (.pre-commit-config.yaml), and CI for each commit of a pull request. It skips
comment lines, because Git strips them after the hook.
"""

import sys
from pathlib import Path

LONGEST = 72
REBASED = ("fixup! ", "squash! ", "amend! ")  # `git rebase --autosquash` removes these


def problems(message: str) -> list[str]:
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    while lines and not lines[0]:
        del lines[0]
    if not lines:
        return ["no subject"]
    subject = lines[0]
    for prefix in REBASED:
        subject = subject.removeprefix(prefix)
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters, {LONGEST} at most: {subject}")
    if len(lines) > 1 and lines[1]:
        found.append(f"no empty line after the subject: {lines[1]}")
    return found


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)
