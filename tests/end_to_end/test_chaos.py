"""The tiny run, killed at any instant; the long version is `python -m tests.chaos --kills 40 --prefect 10`."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--kills", "5", "--prefect", "1", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1800, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^5 kills over \d+ runs in \d+ s; 0 things wrong$", done.stdout, re.MULTILINE)
