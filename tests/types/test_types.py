"""A user's program passes mypy and pyright, strict, and both find his mistakes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PROGRAMS = [FOLDER / "user.py", FOLDER / "mistakes.py"]
LINES = (FOLDER / "mistakes.py").read_text(encoding="utf-8").splitlines()
MISTAKES = [k for k, line in enumerate(LINES, 1) if re.match(r"    \w[\w.]*\(", line)]


@pytest.mark.slow
def test_mypy() -> None:
    strict = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, *map(str, PROGRAMS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not run.stderr, run.stderr
    found = re.findall(r"(\w+)\.py:(\d+): error", run.stdout)
    assert {file for file, _ in found} == {"mistakes"}, run.stdout
    assert sorted({int(line) for _, line in found}) == MISTAKES


@pytest.mark.slow
def test_pyright(tmp_path: Path) -> None:
    if shutil.which("pyright") is None:
        pytest.skip("pyright is not installed (it needs Node.js): npm install -g pyright")
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    options = ["--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    run = subprocess.run(["pyright", *options], capture_output=True, text=True, check=False)
    result = json.loads(run.stdout)
    assert result["summary"]["filesAnalyzed"] == len(PROGRAMS), run.stdout
    found = [each for each in result["generalDiagnostics"] if each["severity"] == "error"]
    assert {Path(each["file"]).stem for each in found} == {"mistakes"}, run.stdout
    assert sorted({each["range"]["start"]["line"] + 1 for each in found}) == MISTAKES
