"""Serve the built book on this machine only, print its address, and open a browser where there is one.

    python tools/serve.py [--port N] [--no-browser]
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"


class Handler(SimpleHTTPRequestHandler):
    # Some systems' tables lack these, and browsers refuse a module or WebAssembly of another type.
    extensions_map = {
        **SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *args):
        pass


def server(folder: Path = SITE, port: int = 0) -> ThreadingHTTPServer:
    """A server of `folder` on 127.0.0.1; port 0 takes any free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--no-browser", action="store_true")
    options = parser.parse_args()
    if not (SITE / "index.html").is_file():
        print(f"There is no book in {SITE} yet; run `make book`.", file=sys.stderr)
        return 1
    try:
        httpd = server(port=options.port)
    except OSError:
        httpd = server()
    address = f"http://127.0.0.1:{httpd.server_port}/"
    print(f"The book is at {address}  (Ctrl+C stops it)", flush=True)
    if not options.no_browser:
        webbrowser.open(address)
    try:
        httpd.serve_forever()
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
