"""The figures of the reports can be read: texts do not meet, and stay inside."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from benchmarks import figures, plots, reports
from benchmarks.plots import Bar, Panel, compare
from benchmarks.rounds import Spread

textpath = pytest.importorskip("matplotlib.textpath")
font_manager = pytest.importorskip("matplotlib.font_manager")

_SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[str, float, float, float, float]


def _box_of(text: str, size: float, bold: bool) -> tuple[float, float, float]:
    """Returns width, height and descent of a text in DejaVu Sans, which is wide."""
    weight = "bold" if bold else "normal"
    font = font_manager.FontProperties(family="DejaVu Sans", size=size, weight=weight)
    box: tuple[float, float, float] = (
        textpath.TextToPath().get_text_width_height_descent(text, font, ismath=False)
    )
    return box


def boxes(svg: str) -> Iterator[Box]:
    """Yields each text of a figure with its bounds: left, top, right, bottom."""
    root = ET.fromstring(svg)
    sizes = dict(re.findall(r"\.(\w+) \{[^}]*font-size: (\d+)px", svg))
    assert sizes.keys() == {"title", "panel", "axis"}
    for node in root.iter(f"{_SVG}text"):
        classes = node.attrib["class"].split()
        size = float(next((sizes[one] for one in classes if one in sizes), 12))
        bold = bool({"title", "panel", "value"} & {*classes})
        width, height, descent = _box_of(node.text or "", size, bold)
        for rest in node:
            width += _box_of(f" {rest.text}", size, bold=False)[0]
        x, y = float(node.attrib["x"]), float(node.attrib["y"])
        left = x - width * {"label": 1, "tick": 0.5}.get(classes[-1], 0)
        text = "".join(node.itertext())
        yield text, left, y + descent - height, left + width, y + descent


def check_texts(svg: str) -> None:
    """Fails where two texts meet, or one leaves the figure."""
    root = ET.fromstring(svg)
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    found = [*boxes(svg)]
    for text, left, top, right, bottom in found:
        inside = 4 <= left < right <= width - 4 and 0 <= top < bottom <= height
        assert inside, f"{text!r} leaves the figure: {left:.0f} to {right:.0f}"
    for one, two in itertools.combinations(found, 2):
        beside = one[3] + 2 <= two[1] or two[3] + 2 <= one[1]
        assert beside or one[4] <= two[2] or two[4] <= one[2], f"{one} meets {two}"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (report, _, _) in figures.FIGURES.items()
        if (reports.ROOT / reports.RESULTS / f"{report}.json").exists()
    ],
)
def test_texts_of_the_reports_do_not_meet(name: str) -> None:
    report, title, _ = figures.FIGURES[name]
    results = json.loads(
        (reports.ROOT / reports.RESULTS / f"{report}.json").read_text()
    )
    canvas = figures.draw(name, results)
    assert canvas is not None
    svg = canvas.svg(title)
    check_texts(svg)
    assert len(svg) < 60_000
    assert "@media (prefers-color-scheme: dark)" in svg
    written = [text for text, *_ in boxes(svg)]
    assert written[0] == title
    assert (
        f"]({name}.svg)" in (reports.ROOT / reports.PAGES / f"{report}.md").read_text()
    )


def _panel(*bars: Bar) -> Panel:
    return Panel("panel", "relative to that", bars)


def _bar(low: float, median: float, high: float, label: str = "label") -> Bar:
    return Bar(label, "ours", Spread(low=low, median=median, high=high))


@pytest.mark.parametrize(
    "bars",
    [
        [_bar(0.999, 0.9999, 1.0)],
        [_bar(0.001, 0.002, 0.003), _bar(1, 1, 1)],
        [_bar(900, 1_000, 1_100), _bar(0.9, 1, 1.1)],
        [_bar(6.9, 7, 7.1), _bar(0.95, 1.2, 2)],
        [_bar(40, 49, 60), _bar(0.02, 0.5, 0.7)],
    ],
)
def test_any_ratios_can_be_read(bars: list[Bar]) -> None:
    check_texts(plots.draw("title", [_panel(*bars)] * 2).svg("title"))


@pytest.mark.parametrize(
    ("panel", "why"),
    [
        (_panel(_bar(1, 1, 1, "a label that is longer than its column")), "leaves"),
        (_panel(_bar(1_000_000, 2_000_000, 3_000_000)), "leaves"),
    ],
)
def test_the_check_sees_texts_that_cannot_be_read(panel: Panel, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_texts(plots.draw("title", [panel]).svg("title"))


def test_contestants_are_compared_round_by_round_and_sorted() -> None:
    names = {
        "slow": ("peer", "the slow one"),
        "ours": ("ours", "ours"),
        "absent": ("peer", "the absent"),
        "fast": ("floor", "the fast one"),
    }
    values = {
        # The second round was on a machine half as fast.
        "slow": {1: 10.0, 2: 5.0},
        "ours": {1: 40.0, 2: 20.0, 3: 1.0},
        "fast": {1: 50.0, 2: 30.0},
    }
    (panel,) = compare("title", values, names, reference="slow", unit="MB/s")
    assert panel.axis == "relative to the slow one (1 = 7.5 MB/s)"
    shown = [(bar.label, plots.show(bar.times)) for bar in panel.bars]
    times = "\N{MULTIPLICATION SIGN}"
    assert shown == [
        ("the fast one", (f"5.50{times}", "(5.00..6.00)")),
        ("ours", (f"4.00{times}", "")),
        ("the slow one", (f"1.00{times}", "")),
    ]


def test_nothing_is_drawn_without_the_reference() -> None:
    names = {"slow": ("peer", "slow"), "ours": ("ours", "ours")}
    values = {"ours": {1: 40.0}}
    assert [*compare("t", values, names, reference="slow", unit="MB")] == []


def test_bars_begin_at_one_where_lengths_are_logarithms() -> None:
    scale = plots.Scale.of([_bar(90, 100, 110), _bar(0.1, 0.1, 0.1)])
    assert scale.logarithmic
    assert scale.begin == scale.place(1)
    assert scale.place(100) - scale.place(10) == pytest.approx(
        scale.place(10) - scale.place(1)
    )
    scale = plots.Scale.of([_bar(2, 3, 4)])
    assert scale.begin == scale.place(0)
    assert scale.place(4) - scale.place(2) == pytest.approx(
        scale.place(2) - scale.place(0)
    )
