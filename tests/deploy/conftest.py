"""Stand-ins that the tests of deploy/ share."""

import pytest

from tests.deploy.tools import stand_in

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
    log = str(tmp_path / "docker.log")
    return {"PATH": stand_in(tmp_path, docker=DOCKER), "DOCKER_LOG": log}
