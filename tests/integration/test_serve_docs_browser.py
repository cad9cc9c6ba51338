"""`GET /docs` in a real browser that has no internet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("swagger_ui_bundle")

from support.linear_dispatcher import LinearDispatcher, serving


def test_docs_show_the_routes_when_there_is_no_internet(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with serving(LinearDispatcher()) as address:
        argv = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
            f"http://{address}/docs",
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    # As Swagger UI shows them, once it has read /openapi.json.
    assert "Predictions for one or several inputs" in done.stdout, done.stderr[-2000:]
    assert "flatout: linear" in done.stdout
    assert "Content Security Policy" not in done.stderr, done.stderr[-2000:]
