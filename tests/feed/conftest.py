"""The dataset that most tests of feeds read."""

import pytest

from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(40, seed=1), text_records(59, seed=2)]


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("web"), FILES)


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.slow)])
def workers(request):
    """How many processes read; none: threads do."""
    return request.param
