"""Fetches uPlot, which draws the charts of `flatout web`, in the version that uplot.toml names.

    python3 scripts/fetch_uplot.py          writes its files into src/flatout/web/static/uplot
    python3 scripts/fetch_uplot.py --check  compares them with the package

The package comes from npm, by npm. Its digest must be the one in uplot.toml.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "src" / "flatout" / "web" / "static" / "uplot"
FILES = {
    "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
    "package/LICENSE": "LICENSE",
}


def main(arguments: list[str]) -> int:
    """Writes or compares the files; returns the exit code."""
    wanted = tomllib.loads((FOLDER / "uplot.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        argv = ["npm", "pack", f"uplot@{wanted['version']}", "--pack-destination", folder]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        (package,) = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
        if digest != wanted["sha512"]:
            print(f"error: the package has sha512 {digest}: not that of uplot.toml")
            return 1
        with tarfile.open(package) as archive:
            contents = {}
            for member, name in FILES.items():
                file = archive.extractfile(member)
                assert file is not None
                contents[name] = file.read()
    if "--check" in arguments:
        differing = [name for name, content in contents.items()
                     if (FOLDER / name).read_bytes() != content]  # fmt: skip
        print(f"differs: {', '.join(differing)}" if differing else "as in the package")
        return 1 if differing else 0
    for name, content in contents.items():
        (FOLDER / name).write_bytes(content)
    print(f"wrote {', '.join(contents)} of uPlot {wanted['version']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
