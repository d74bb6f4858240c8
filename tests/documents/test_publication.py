"""Files for the project's host and for a release: their schemas, and refusals."""

import shutil
import subprocess
import sys

import pytest

from tests.support.distributions import FOLDERS, ROOT, copy_source, setup_arguments

HOST = ROOT / ".github"
WORKFLOWS = sorted((HOST / "workflows").glob("*.yml"))
CONFIG = HOST / "ISSUE_TEMPLATE" / "config.yml"
FORMS = {*(HOST / "ISSUE_TEMPLATE").glob("*.yml")} - {CONFIG}
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [CONFIG],
    "vendor.dependabot": [HOST / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.slow
def test_files_of_the_host_follow_their_schemas(tmp_path):
    for schema, paths in SCHEMAS.items():
        assert paths
        assert follows(schema, *paths) == ""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert "run-on" in follows("vendor.github-workflows", wrong)


def follows(schema, *paths):
    """Returns what is wrong with files, by a schema; nothing for right ones."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run(
        [*command, *paths], capture_output=True, text=True, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path):
    """A repository of what a release is built from."""
    folder = tmp_path / "clone"
    (folder / ".ci").mkdir(parents=True)
    copy_source(folder)
    shutil.copy(ROOT / ".ci" / "release", folder / ".ci" / "release")
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Someone")
    git(folder, "config", "user.email", "someone@example.com")
    commit(folder)
    return folder


def git(folder, *command):
    subprocess.run(["git", *command], cwd=folder, check=True, timeout=30)


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")


def release(folder, into):
    """Runs a release that is refused before it downloads a tool."""
    command = [folder / ".ci" / "release", into]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stdout
    assert done.stdout == ""
    return done.stderr


@pytest.mark.slow
def test_a_release_is_refused_until_all_is_there(clone, tmp_path):
    version = setup_arguments()["version"]
    into = tmp_path / "dist"
    changes = clone / "CHANGELOG.md"
    changes.write_text(f"# Changelog\n\n## Unreleased\n\n## {version}\n")
    assert "CHANGELOG.md has no heading" in release(clone, into)
    changes.write_text(f"# Changelog\n\n## {version} (2026-01-31)\n")
    assert "_REPOSITORY in setup.py is a placeholder" in release(clone, into)
    setup = clone / "setup.py"
    setup.write_text(setup.read_text().replace("example.org", "git.invalid"))
    assert "there are uncommitted changes" in release(clone, into)
    commit(clone)
    (into / "earlier.whl").write_text("")
    assert f"{into} is not empty" in release(clone, into)
    first = clone / "package" / "__init__.py"
    first.write_text('__version__ = "0.2.dev0"\n')
    assert "is not MAJOR.MINOR.PATCH" in release(clone, into)


def test_the_version_stands_in_one_place():
    version = setup_arguments()["version"]
    folders = [ROOT / name for name in FOLDERS]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    files = (*ROOT.glob("*.cff"), *ROOT.glob("*.toml"), *ROOT.glob("docs/*.py"))
    found = [path for path in (*sources, *files) if f'"{version}"' in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in found] == [
        "package/__init__.py"
    ]
