"""The report of `flatout bench compare` in a real browser: nothing in a file runs, and it fits."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flatout.bench import compare as bench_compare
from flatout.bench import report
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import LoadedBench
from flatout.schema.machine import Cpu, Machine

ATTACKS = (
    "<script>document.title='RUN'</script>",
    "<img src=x onerror=\"document.title='RUN'\">",
    "'\"></text></svg><svg onload=\"document.title='RUN'\">",
    "</title></style><iframe srcdoc=\"<script>top.document.title='RUN'</script>\">",
    "javascript:document.title='RUN'",
    "<a href=\"javascript:document.title='RUN'\">a</a> &lt;script&gt;",
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# The browser has no window as narrow as a phone; below 640 pixels the page has the same layout.
MEASURE = """<script>
document.documentElement.style.width = '360px';
const wide = [...document.querySelectorAll('body *')].filter(one =>
  !one.closest('.wide') && !one.closest('svg') && one.getBoundingClientRect().right > 361);
document.title = 'WIDE ' + wide.length + ' of ' + document.querySelectorAll('body *').length
  + ' ' + wide.slice(0, 3).map(one => one.className + one.textContent.slice(0, 40)).join('; ');
</script>"""


@pytest.fixture
def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    return found


def title_in(browser: str, folder: Path, page: str) -> str:
    """The title of a page after its scripts have run."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000", "--dump-dom",
            path.as_uri()]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "</html>" in done.stdout, done.stderr[-500:]
    found = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    return found[1] if found else ""


def page_of(text: str, *, num_files: int = 2) -> str:
    """A report in which this text is everywhere that a file can put text."""
    state = DeviceState(at=text, throttles=(text,))
    rows = tuple(
        BenchRow(
            id=f"limits/{kind}/{text}", label=text, unit=unit, samples=(1e9, 1.1e9, 2e9),
            vendor=2e9, vendor_source=text, conditions={text: text},
        )
        for kind, unit in (("matmul", "flop/s"), ("memory", "B/s"), ("disk", "s"))
    )  # fmt: skip
    files = [
        LoadedBench(
            name=f"{number}{text}", path=text, problems=(text,),
            file=BenchFile(
                kind="limits", flatout=text, machine=Machine(cpu=Cpu(name=text)), began=state,
                ended=state, rows=rows, settings={text: text}, warnings=(text,),
                versions={text: f"{number}{text}"},
            ),
        )
        for number in range(num_files)
    ]  # fmt: skip
    return report.page(files, bench_compare.compare(files))


def test_browser_runs_what_is_not_escaped(browser: str, tmp_path: Path) -> None:
    # Otherwise the tests below would prove nothing.
    assert title_in(browser, tmp_path, f"<html><title>a</title>{ATTACKS[0]}</html>") == "RUN"


def test_names_with_scripts_do_not_run(browser: str, tmp_path: Path) -> None:
    page = page_of(" ".join(ATTACKS))
    assert POLICY.search(page)
    # By escaping alone, and with the page's policy as well.
    for variant in (POLICY.sub("", page), page):
        assert title_in(browser, tmp_path, variant).startswith("flatout bench: ")


def test_policy_stops_scripts_alone(browser: str, tmp_path: Path) -> None:
    page = page_of("a").replace("</body>", f"{ATTACKS[0]}</body>")
    assert title_in(browser, tmp_path, page).startswith("flatout bench: ")


@pytest.mark.parametrize("text", ["a name of several words", "x" * 200])
def test_page_fits_a_phone(browser: str, tmp_path: Path, text: str) -> None:
    page = POLICY.sub("", page_of(text, num_files=3)).replace("</body>", f"{MEASURE}</body>")
    title = title_in(browser, tmp_path, page)
    assert title.startswith("WIDE 0 of "), title
