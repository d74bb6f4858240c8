"""Versions, with distributions that are installed as metadata alone."""

from __future__ import annotations

import importlib.metadata
import pathlib
import sys

import pytest

from gristmill.pipelines.doctor.finding import Finding
from gristmill.pipelines.doctor.versions import look_at_versions


class Site:
    """A folder of distributions, the first on Python's path."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def install(self, name: str, version: str, *requires: str) -> None:
        folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Requires-Dist: {one}" for one in requires]
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (folder / "METADATA").write_text("\n".join([*head, *lines, "", ""]))


@pytest.fixture
def site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


def look(about: str) -> list[Finding]:
    return [finding for finding in look_at_versions(None) if about in finding.seen]


def test_what_is_installed_here_fits() -> None:
    (found,) = look_at_versions(None)
    assert found.level == "ok", found
    assert f"gristmill {importlib.metadata.version('gristmill')}" in found.seen
    assert "loader" in found.seen


def test_a_package_of_the_core_out_of_range_is_an_error(site: Site) -> None:
    site.install("zstandard", "0.15.2")
    (found,) = look("zstandard 0.15.2; gristmill needs")
    assert found.level == "error"
    assert found.cure == "pip install 'zstandard<1,>=0.23'"
    assert not look("in its ranges")


def test_a_package_of_an_extra_out_of_range_is_a_warning(site: Site) -> None:
    site.install("grain", "0.1.0")
    site.install("zstandard", "0.24.0rc1")  # A pre-release of its range is in it.
    (found,) = look("gristmill[loader]")
    assert found.level == "warning"
    assert found.seen.startswith("grain 0.1.0;")
    assert "pip install 'grain" in found.cure
    assert "zstandard" not in found.seen


def test_packages_are_compared_with_what_others_need(site: Site) -> None:
    site.install("trainer", "3.1", "numpy>=99", "a broken line ((", "nothing-of-ours")
    site.install("prometheus-client", "0.21", "a-part-of-it", 'windows; extra == "x"')
    found = look("needs")
    # What only an extra needs, and what has nothing to do with gristmill, is left out.
    assert [one.level for one in found] == ["warning", "warning"], found
    part, numpy = found
    assert part.seen == "no a-part-of-it; prometheus-client 0.21 needs a-part-of-it"
    version = importlib.metadata.version("numpy")
    assert numpy.seen == f"numpy {version}; trainer 3.1 needs numpy>=99"
    assert "another environment" in numpy.cure


def test_pairs_that_do_not_go_together(site: Site) -> None:
    others = {
        "maxtext": ("apache-beam", "beam/bin/pip install 'gristmill[beam,gcs]'"),
        "grain-nightly": ("grain", "pip uninstall grain-nightly"),
        "tensorflow-cpu": ("tensorflow", "--force-reinstall --no-deps tensorflow"),
    }
    for name in others:
        site.install(name, "0.2.5")
    found = look("beside")
    assert [one.level for one in found] == ["warning"] * 3
    for one, (name, (other, cure)) in zip(found, others.items(), strict=True):
        version = importlib.metadata.version(other)
        assert one.seen == f"{other} {version} beside {name} 0.2.5"
        assert cure in one.cure


def test_a_core_package_that_is_missing_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only what is in the folder is installed.
    site.install("gristmill", "9.9", "brotli<2,>=1.1", 'jax>=0.5; extra == "loader"')
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    (found,) = look_at_versions(None)
    assert found.level == "error"
    assert found.seen.startswith("brotli is not installed")
    assert found.cure == "pip install 'brotli<2,>=1.1'"


def test_an_old_python_is_an_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("gristmill", "9.9")
    about = site.folder / "gristmill-9.9.dist-info" / "METADATA"
    about.write_text(about.read_text().rstrip() + "\nRequires-Python: >=3.99\n\n")
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    (found,) = look_at_versions(None)
    assert (found.level, "needs Python >=3.99" in found.seen) == ("error", True)


def test_without_metadata_of_gristmill_nothing_can_be_compared(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(site.folder)])
    (found,) = look_at_versions(None)
    assert (found.level, found.cure) == ("warning", "pip install gristmill")
