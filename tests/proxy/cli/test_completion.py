"""What click prints for ``_FOREBAY_COMPLETE`` makes a real shell complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("line", "found"), [("forebay sta", {"status"}), ("forebay run --requ", {"--required"})])
def test_bash_completes(tmp_path: Path, line: str, found: set[str]) -> None:
    """A verb by its beginning, and a flag of a verb; the function that is printed is what bash calls."""
    (tmp_path / "forebay").write_text(f'#!/bin/sh\nexec {sys.executable} -m forebay_proxy "$@"\n')
    (tmp_path / "forebay").chmod(0o755)
    script = f'''eval "$(_FOREBAY_COMPLETE=bash_source forebay)"; COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}
function=$(complete -p forebay | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $function forebay; printf '%s\\n' "${{COMPREPLY[@]}}"'''
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found
