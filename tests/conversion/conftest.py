"""What several files of tests use."""

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory that the tests of a file share, and the examples of Hypothesis."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Makes an empty directory the current one, so that paths are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
