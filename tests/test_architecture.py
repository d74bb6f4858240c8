"""docs/concepts/architecture.md and its picture describe the code as it is."""

import pathlib
import re
import xml.etree.ElementTree as ET

from docs import draw_architecture

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
AGAIN = "run: python docs/draw_architecture.py"


def test_picture_is_what_the_script_draws() -> None:
    drawn = draw_architecture.draw()
    assert ET.fromstring(drawn) is not None
    assert drawn == draw_architecture.PICTURE.read_text(encoding="utf-8"), AGAIN


def test_tree_is_what_the_folders_say() -> None:
    assert draw_architecture.with_tree(PAGE) == PAGE, AGAIN


def test_every_folder_is_one_sentence() -> None:
    for package in ("dataset", "loader", "pipelines", "transforms"):
        for path in sorted((ROOT / package).rglob("__init__.py")):
            folder = path.parent.relative_to(ROOT).as_posix()
            idea = draw_architecture.docstring_of(
                "gristmill." + folder.replace("/", ".")
            )
            assert re.fullmatch(r"[A-Z`].{,84}\.", idea), f"{folder}: {idea}"
            assert ". " not in idea, f"{folder}: {idea}"


def test_modules_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|md))`", PAGE))
    assert len(named) > 25
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []
