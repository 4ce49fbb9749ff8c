"""Find a Chromium for the browser tests; with --install, ask Debian's package manager for one.

    python tools/find_chromium.py [--install]

KVLIB_CHROMIUM names one explicitly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The path of a Chromium, or None."""
    named = os.environ.get("KVLIB_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise SystemExit(
            "The browser tests need Chromium. Install it (Debian, Ubuntu: sudo apt-get install chromium) "
            "or set KVLIB_CHROMIUM to one."
        )
    print("Installing Debian's chromium (about 115 MB) …", flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], check=True)


def main() -> int:
    if find() is None and "--install" in sys.argv:
        install()
    found = find()
    print(found or "no Chromium found", file=sys.stdout if found else sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
