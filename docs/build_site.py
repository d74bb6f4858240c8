"""Builds the site of these pages: `python docs/build_site.py [FOLDER]`.

The pages of the version that is checked out go to FOLDER/VERSION. Versions that are
there already stay; FOLDER/switcher.json lists all of them for the menu, and
FOLDER/index.html leads to the newest. Any warning of Sphinx is an error. To look at the
site: `python -m http.server --directory site`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from packaging.version import Version

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
HOME = "README.html"
_REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={}/{}">\n'


def build(out: pathlib.Path, jobs: str) -> int:
    """Builds the pages into a folder; returns Sphinx's exit status."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".building-") as work:
        made = pathlib.Path(work, "site")
        command = [sys.executable, "-m", "sphinx", "--builder=html", f"--jobs={jobs}"]
        command += ["--conf-dir", str(HERE), "--fail-on-warning", "--quiet"]
        command += ["--doctree-dir", f"{work}/cache", str(HERE.parent), str(made)]
        status = subprocess.run(command, check=False).returncode
        if status == 0:  # In place of what was there, so that no page of that stays.
            shutil.rmtree(out, ignore_errors=True)
            made.rename(out)
    return status


def link_versions(site: pathlib.Path, url: str = "/") -> None:
    """Writes the menu of versions and the page that leads to the newest release.

    Args:
        site: The folder of all versions.
        url: Where it is to be served: a URL or an absolute path, with a final slash.
    """
    names = [path.parent.name for path in site.glob(f"*/{HOME}")]
    names.sort(key=Version, reverse=True)
    newest = next((n for n in names if not Version(n).is_prerelease), names[0])
    menu = [
        {"name": name, "version": name, "url": f"{url}{name}/"}
        | ({"name": f"{name} (stable)", "preferred": True} if name == newest else {})
        for name in names
    ]
    (site / "switcher.json").write_text(json.dumps(menu, indent=2) + "\n", "utf-8")
    (site / "index.html").write_text(_REDIRECT.format(newest, HOME), "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Builds this version and links all."""
    import conf

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="site", type=pathlib.Path)
    parser.add_argument("--url", default="/", help="where the folder is to be served")
    parser.add_argument("--jobs", default="auto", help="processes of Sphinx")
    options = parser.parse_args(arguments)
    out = options.folder / conf.version
    status = build(out, options.jobs)
    if status == 0:
        link_versions(options.folder, options.url.rstrip("/") + "/")
        print(f"{out / HOME}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
