"""Stand-ins that the tests of deploy/ share."""

import os

import pytest

# A stand-in for docker, which says what it was asked for.
DOCKER = """#!/usr/bin/env bash
echo "docker $*" >> "$DOCKER_LOG"
if [[ "$*" == "image inspect"* ]]; then
  name=${@: -1}
  echo "${name%%[:@]*}@sha256:of-$(basename "$name" | tr -c 'a-z0-9.\\n' -)"
fi
"""


@pytest.fixture
def docker(tmp_path):
    """Variables that put the stand-in first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    log = tmp_path / "docker.log"
    return {"PATH": f"{folder}:{os.environ['PATH']}", "DOCKER_LOG": str(log)}
