"""The page as one file."""

from __future__ import annotations

from gristmill.pipelines.view.write_page import page, write_html


def test_the_file_has_answers_in_it(opened, tmp_path) -> None:
    write_html(opened, str(tmp_path / "out.html"))
    assert b'"records": 100' in (tmp_path / "out.html").read_bytes()
    assert b"<!doctype html>" in page()
