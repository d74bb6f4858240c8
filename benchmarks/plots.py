"""The figures of the reports: how many times the speed of a peer each contestant has.

    python -m benchmarks.reports

A figure is an SVG file that is the same for the same runs, on every machine. Its text
is text, and its colours follow the reader's light or dark theme. It is narrow, so that
it can be read on a telephone: a test measures that its labels do not meet.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

from benchmarks.rounds import Spread

KINDS = {"ours": "gristmill", "peer": "peer", "floor": "does less work"}
_WIDTH = 520
_MARGIN = 12
_LABELS_END = 206
_BARS = (214, 374)  # Numbers follow, up to the margin.
_ROW, _BAR = 22, 13
_LOGARITHMIC_FROM = 8  # Times the smallest value is the largest.
_STYLE = """\
svg { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px }
.page { fill: #ffffff } text { fill: #1a2430 }
.title { font-size: 15px; font-weight: 700 }
.panel { font-size: 13px; font-weight: 600 }
.axis, .range { fill: #566375 } .axis { font-size: 11px } .label { text-anchor: end }
.tick { text-anchor: middle } .value { font-weight: 600 }
.value { paint-order: stroke; stroke: #ffffff; stroke-width: 3px }
.value .range { font-weight: 400 } .grid { stroke: #e3e8ee }
.one { stroke: #566375; stroke-dasharray: 3 2 } .whisker { stroke: #1a2430; fill: none }
.ours { fill: #0072b2 } .peer { fill: #e08a00 } .floor { fill: #a7b1bd }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #e6edf3 } .axis, .range { fill: #9aa6b2 }
.value { stroke: #0d1117 } .grid { stroke: #242c36 } .one { stroke: #9aa6b2 }
.whisker { stroke: #e6edf3 }
.ours { fill: #4aa3df } .peer { fill: #e0a030 } .floor { fill: #5d6875 }
}"""


@dataclasses.dataclass(frozen=True)
class Bar:
    """One contestant.

    Attributes:
        label: Its name, short.
        kind: Whose it is: a key of `KINDS`.
        times: How many times the reference, over the rounds.
    """

    label: str
    kind: str
    times: Spread


@dataclasses.dataclass(frozen=True)
class Panel:
    """Contestants that are compared with one of them.

    Attributes:
        title: What is compared.
        axis: What 1 is, with its unit.
        bars: Largest first.
    """

    title: str
    axis: str
    bars: Sequence[Bar]


@dataclasses.dataclass(frozen=True)
class Text:
    """A text in the figure.

    Attributes:
        x: X position of its anchor.
        y: Y position of its baseline.
        text: What it says.
        style: Classes.
        rest: More of it, in the style of a range.
    """

    x: float
    y: float
    text: str
    style: str
    rest: str = ""


class Canvas:
    """Collects what is drawn, from top to bottom.

    Attributes:
        texts: All that was written.
    """

    def __init__(self) -> None:
        self.texts: list[Text] = []
        self._shapes: list[str] = []
        self._y = 0.0

    def _text(self, x: float, y: float, text: str, style: str, rest: str = "") -> None:
        self.texts.append(Text(round(x, 1), round(y, 1), text, style, rest))

    def _line(self, style: str, *points: tuple[float, float]) -> None:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._shapes.append(f'<path class="{style}" d="M{path}"/>')

    def _bar(self, style: str, begin: float, end: float, y: float) -> None:
        left, width = min(begin, end), max(abs(end - begin), 1.5)
        self._shapes.append(
            f'<rect class="{style}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{_BAR}" rx="1.5"/>'
        )

    def head(self, title: str, kinds: Sequence[str]) -> None:
        """Draws the title and the legend."""
        self._text(_MARGIN, 24, title, "title")
        x = float(_MARGIN)
        for kind in kinds:
            self._bar(kind, x, x + 20, 37)
            self._text(x + 26, 48, KINDS[kind], "axis")
            x += 26 + 6.6 * len(KINDS[kind]) + 14
        self._whisker(x, x + 20, 43.5)
        self._text(x + 26, 48, "range of the rounds", "axis")
        self._y = 58

    def _whisker(self, low: float, high: float, y: float) -> None:
        self._line("whisker", (low, y), (high, y))
        for x in (low, high):
            self._line("whisker", (x, y - 3), (x, y + 3))

    def panel(self, panel: Panel) -> None:
        """Draws one panel below what is there."""
        scale = Scale.of(panel.bars)
        top = self._y + 40
        bottom = top + _ROW * len(panel.bars)
        self._text(_MARGIN, self._y + 28, panel.title, "panel")
        for value in scale.ticks:
            x = scale.place(value)
            self._line("grid", (x, top - 2), (x, bottom + 2))
            self._text(x, bottom + 15, f"{value:g}", "axis tick")
        self._line("one", (scale.place(1), top - 2), (scale.place(1), bottom + 2))
        for row, bar in enumerate(panel.bars):
            y = top + _ROW * row + (_ROW - _BAR) / 2
            end = scale.place(bar.times.median)
            self._bar(bar.kind, scale.begin, end, y)
            right = max(end, scale.begin)
            if bar.times.low < bar.times.high:
                spread = scale.place(bar.times.low), scale.place(bar.times.high)
                self._whisker(*spread, y + _BAR / 2)
                right = max(right, spread[1])
            number, rest = show(bar.times)
            self._text(_LABELS_END, y + 10.5, bar.label, "label")
            self._text(right + 7, y + 10.5, number, "value", rest)
        logarithmic = ", logarithmic" if scale.logarithmic else ""
        self._text(_MARGIN, bottom + 31, f"{panel.axis}{logarithmic}", "axis")
        self._y = bottom + 32

    @property
    def height(self) -> int:
        """How high the figure is."""
        return math.ceil(self._y) + _MARGIN

    def svg(self, label: str) -> str:
        """Returns the figure."""
        size = f'width="{_WIDTH}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} '
            f'{self.height}" role="img" aria-label={quoteattr(label)}>',
            f"<style>\n{_STYLE}\n</style>",
            f'<rect class="page" {size} rx="6"/>',
            *self._shapes,
        ]
        for one in self.texts:
            rest = f' <tspan class="range">{escape(one.rest)}</tspan>'
            lines.append(
                f'<text class="{one.style}" x="{one.x:g}" y="{one.y:g}">'
                f"{escape(one.text)}{rest if one.rest else ''}</text>"
            )
        return "\n".join([*lines, "</svg>"]) + "\n"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Where values are.

    Attributes:
        low: The value at the left.
        high: The value at the right.
        logarithmic: Whether equal distances are equal ratios; bars begin at 1 then.
    """

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, bars: Sequence[Bar]) -> Scale:
        """Returns the scale on which all bars fit."""
        high = max(1.0, *(bar.times.high for bar in bars))
        low = min(1.0, *(bar.times.low for bar in bars))
        if high / low < _LOGARITHMIC_FROM:
            return cls(0.0, high, False)
        return cls(low / 1.15 if low < 1 else 1.0, high, True)

    def place(self, value: float) -> float:
        """Returns where a value is, in pixels from the left."""
        left, right = _BARS
        if not self.logarithmic:
            return left + (right - left) * value / self.high
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return left + (right - left) * share

    @property
    def begin(self) -> float:
        """Where bars begin."""
        return self.place(1) if self.logarithmic else self.place(0)

    @property
    def ticks(self) -> list[float]:
        """Round values, far enough from each other that their labels do not meet."""
        if self.logarithmic:
            first, last = math.log10(self.low), math.log10(self.high)
            digits = (1, 2, 5) if last - first < 2 else (1,)
            powers = range(math.floor(first), math.ceil(last) + 1)
            found = [digit * 10.0**power for power in powers for digit in digits]
        else:
            step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5) if self.high / s <= 5)
            found = [round(step * n, 6) for n in range(6)]
        return [value for value in found if self.low <= value <= self.high]


def show(times: Spread) -> tuple[str, str]:
    """Returns a ratio and its range as they are written at a bar."""
    digits = 0 if times.median >= 100 else 1 if times.median >= 10 else 2
    number = f"{times.median:,.{digits}f}\N{MULTIPLICATION SIGN}"
    if times.low == times.high:
        return number, ""
    return number, f"({times.low:,.{digits}f}..{times.high:,.{digits}f})"


def compare(
    title: str,
    values: Mapping[str, Mapping[int, float]],
    names: Mapping[str, tuple[str, str]],
    *,
    reference: str,
    unit: str,
) -> Iterator[Panel]:
    """Yields the panel of contestants beside one of them, unless they cannot be.

    Args:
        title: What is compared.
        values: Of each contestant in each round; more is better.
        names: The kind and the label of contestants that are shown.
        reference: The contestant that is 1.
        unit: Unit of the values.
    """
    base = values.get(reference, {})
    bars = [
        Bar(label, kind, Spread.of(times))
        for key, (kind, label) in names.items()
        if (own := values.get(key))
        and (times := [own[number] / base[number] for number in own if number in base])
    ]
    if len(bars) < 2:
        return
    middle = Spread.of([*base.values()]).median
    shown = f"{middle:,.0f}" if middle >= 100 else f"{middle:.3g}"
    axis = f"relative to {names[reference][1]} (1 = {shown} {unit})"
    yield Panel(title, axis, sorted(bars, key=lambda bar: -bar.times.median))


def draw(title: str, panels: Sequence[Panel]) -> Canvas:
    """Draws a figure."""
    canvas = Canvas()
    used = {bar.kind for panel in panels for bar in panel.bars}
    canvas.head(title, [kind for kind in KINDS if kind in used])
    for panel in panels:
        canvas.panel(panel)
    return canvas
