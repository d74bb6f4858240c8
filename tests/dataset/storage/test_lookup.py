"""The storage of a path."""

from __future__ import annotations

import pytest

from gristmill.dataset.errors import InputError
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.lookup import storage_for


class TestChoosing:
    @pytest.mark.parametrize("path", ["/a/b", "a", "./a:b", "C4://"[:2], "a/gs://b"])
    def test_paths_of_this_machine(self, path: str):
        assert isinstance(storage_for(path), LocalStorage)

    @pytest.mark.parametrize("path", ["s3://b/c", "hdfs://x", "file:///a", "HTTP://x"])
    def test_others_are_refused_with_a_way_out(self, path: str):
        with pytest.raises(InputError, match="no storage for") as caught:
            storage_for(path)
        assert path in str(caught.value)
        assert "copy the data" in str(caught.value)
