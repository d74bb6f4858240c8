"""Builds the site of these pages: `python docs/build_site.py [FOLDER]`.

The pages of the version that is checked out go to FOLDER/VERSION. Versions that are
there already stay; FOLDER/switcher.json lists all of them for the menu, and
FOLDER/index.html leads to the newest release. Any warning of Sphinx is an error. To
look at the site:
`python -m http.server --directory site`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from packaging.version import InvalidVersion, Version

HERE = pathlib.Path(__file__).resolve().parent
# Where each version begins.
HOME = "README.html"
_REDIRECT = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>gristmill</title>
<meta http-equiv="refresh" content="0; url={home}">
<link rel="canonical" href="{home}">
</head>
<body><a href="{home}">gristmill {version}</a></body>
</html>
"""


def this_version() -> str:
    """Returns the version of the code that is checked out."""
    text = (HERE.parent / "package" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if match is None:
        raise SystemExit('package/__init__.py has no line `__version__ = "..."`')
    return match[1]


def build(out: pathlib.Path, *, jobs: str = "auto", version: str = "") -> int:
    """Builds the pages into a folder; returns Sphinx's exit status.

    Args:
        out: The folder of this version.
        jobs: Processes, a number or `auto`.
        version: Its name in the menu of versions, if not the code's version.
    """
    command = [sys.executable, "-m", "sphinx", "--builder=html", f"--jobs={jobs}"]
    command += ["--conf-dir", str(HERE), "--fail-on-warning", "--nitpicky", "--quiet"]
    if version:
        command += ["-D", f"version={version}", "-D", f"release={version}"]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".building-") as work:
        made = pathlib.Path(work, "site")
        command += ["--doctree-dir", str(pathlib.Path(work, "cache"))]
        status = subprocess.run(
            [*command, str(HERE.parent), str(made)], check=False
        ).returncode
        if status == 0:  # In place of what was there, so that no page of that stays.
            if out.exists():
                shutil.rmtree(out)
            made.rename(out)
    return status


def versions_in(site: pathlib.Path) -> list[str]:
    """Returns the versions that a site holds, newest first; others follow by name."""
    names = [path.parent.name for path in site.glob(f"*/{HOME}")]

    def age(name: str) -> tuple[bool, Version, str]:
        try:
            return True, Version(name), name
        except InvalidVersion:
            return False, Version("0"), name

    return sorted(names, key=age, reverse=True)


def latest(versions: list[str]) -> str:
    """Returns the newest release, or the newest of all where there is none."""
    for name in versions:
        try:
            if not Version(name).is_prerelease:
                return name
        except InvalidVersion:
            continue
    return versions[0]


def link_versions(site: pathlib.Path, url: str = "/") -> None:
    """Writes the menu of versions and the page that leads to the newest release.

    Args:
        site: The folder of all versions.
        url: Where it is to be served: a URL or an absolute path, with a final slash.
    """
    versions = versions_in(site)
    newest = latest(versions)
    menu = [
        {
            "name": f"{name} (stable)" if name == newest else name,
            "version": name,
            "url": f"{url}{name}/",
            "preferred": name == newest,
        }
        for name in versions
    ]
    (site / "switcher.json").write_text(json.dumps(menu, indent=2) + "\n", "utf-8")
    page = _REDIRECT.format(home=f"{newest}/{HOME}", version=newest)
    (site / "index.html").write_text(page, "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Builds one version and links all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="site", type=pathlib.Path)
    parser.add_argument("--version", default=this_version(), help="its folder")
    parser.add_argument("--url", default="/", help="where the folder is to be served")
    parser.add_argument("--jobs", default="auto", help="processes of Sphinx")
    options = parser.parse_args(arguments)
    url = options.url if options.url.endswith("/") else f"{options.url}/"
    out = options.folder / options.version
    status = build(out, jobs=options.jobs, version=options.version)
    if status == 0:
        link_versions(options.folder, url)
        print(f"{out / HOME}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
