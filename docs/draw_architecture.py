"""Draws docs/concepts/architecture.svg, and writes the tree in architecture.md there.

    python docs/draw_architecture.py

A box is a folder, or the modules of a layer that are in no folder. The layers are those
of pyproject.toml. An arrow is an import within a package, where no other arrows lead
there anyway; what a box imports from other packages stands in it. Errors are left out:
everything imports them. The tree has the first sentence of each folder's docstring. The
same code gives the same picture and the same tree.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import pathlib
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

import grimp

ROOT = pathlib.Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "concepts" / "architecture.svg"
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
_TREE = ("<!-- tree: begin -->\n", "<!-- tree: end -->\n")
_PACKAGES = ("dataset", "transforms", "pipelines", "loader")

# Everything imports these.
_UNSAID = {"gristmill.dataset.base.errors", "gristmill.dataset.base.lazy_names"}

_WIDTH = 940
_MARGIN, _PADDING = 14, 16
_BOX_WIDTH, _BOX_GAP = 196, 20
_ROW_GAP, _BAND_GAP = 36, 34
_HEADING, _LINE = 60, 14
_LETTERS = 33  # That fit into a line of small text.

_STYLE = """
svg { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
.page { fill: #ffffff } .band { fill: #f3f5f8; stroke: #d5dbe3 }
.box { fill: #ffffff; stroke: #8a97a8 } .module { stroke-dasharray: 4 3 }
.title { fill: #1a2430; font-size: 17px; font-weight: 700 }
.idea { fill: #566375; font-size: 12px } .uses { fill: #566375; font-size: 10.5px }
.name { fill: #1a2430; font-size: 13px; font-weight: 600 }
.arrow { fill: none; stroke: #5b7fae; stroke-width: 1.3 } .head { fill: #5b7fae }
.wide { fill: none; stroke: #8a97a8; stroke-width: 3 } .widehead { fill: #8a97a8 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .band { fill: #161b22; stroke: #30363d }
.box { fill: #0d1117; stroke: #6e7a88 } .title, .name { fill: #e6edf3 }
.idea, .uses { fill: #9aa6b2 } .arrow { stroke: #79a7e0 } .head { fill: #79a7e0 }
.wide { stroke: #6e7a88 } .widehead { fill: #6e7a88 }
}
"""


@dataclasses.dataclass(kw_only=True)
class Box:
    """A folder or some modules, and where they are drawn."""

    members: tuple[str, ...]
    is_folder: bool
    lines: list[str]
    row: int = 0
    x: float = 0
    y: float = 0
    height: float = 0

    @property
    def label(self) -> str:
        """What is written in the box."""
        names = ", ".join(name.rpartition(".")[2] for name in self.members)
        return f"{names}/" if self.is_folder else names


def read_layers() -> dict[str, list[list[str]]]:
    """Returns the layers of each package, highest first, as lists of full names."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = {}
    for contract in tomllib.loads(text)["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            (container,) = contract["containers"]
            found[container] = [
                [f"{container}.{name.strip(' ()')}" for name in re.split("[|:]", layer)]
                for layer in contract["layers"]
            ]
    return found


def inside(graph: grimp.ImportGraph, name: str) -> set[str]:
    """Returns a module or folder and all modules in it."""
    return {name, *graph.find_descendants(name)}


def boxes_of(
    graph: grimp.ImportGraph, layers: Sequence[Sequence[str]], most: int
) -> list[list[Box]]:
    """Returns rows of boxes, `most` in each at most."""
    rows: list[list[Box]] = []
    for layer in layers:
        names = [name for name in layer if name in graph.modules]
        folders = [name for name in names if graph.find_children(name)]
        modules = [name for name in names if name not in folders]
        # Three modules and more share a box.
        groups = [tuple(modules)] if len(modules) > 2 else [(name,) for name in modules]
        boxes = [Box(members=(name,), is_folder=True, lines=[]) for name in folders]
        boxes += [Box(members=group, is_folder=False, lines=[]) for group in groups]
        for begin in range(0, len(boxes), most):
            rows.append(boxes[begin : begin + most])
    return rows


def imports_between(
    graph: grimp.ImportGraph, boxes: Sequence[Box]
) -> list[tuple[int, int]]:
    """Returns which box imports which, without what follows from other imports."""
    owner = {
        module: number
        for number, box in enumerate(boxes)
        for member in box.members
        for module in inside(graph, member)
    }
    direct: dict[int, set[int]] = {number: set() for number in range(len(boxes))}
    for module, number in owner.items():
        for imported in graph.find_modules_directly_imported_by(module) - _UNSAID:
            if owner.get(imported, number) != number:
                direct[number].add(owner[imported])
    reached = {number: _reached(direct, number) for number in direct}
    return [
        (number, other)
        for number, others in direct.items()
        for other in sorted(others)
        if not any(other in reached[between] for between in others - {other})
    ]


def _reached(direct: dict[int, set[int]], start: int) -> set[int]:
    found: set[int] = set()
    waiting = [*direct[start]]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += direct[number]
    return found


def uses_of(graph: grimp.ImportGraph, box: Box, names: Iterable[str]) -> list[str]:
    """Returns a line or more on what a box imports from other packages."""
    own = box.members[0].split(".")[1]
    imported = {
        other
        for member in box.members
        for module in inside(graph, member)
        for other in graph.find_modules_directly_imported_by(module)
    }
    by_package: dict[str, list[str]] = {}
    for name in names:
        package, _, room = name.removeprefix("gristmill.").partition(".")
        if package != own and name not in _UNSAID and imported & inside(graph, name):
            by_package.setdefault(package, []).append(room)
    lines: list[str] = []
    for package, rooms in by_package.items():
        line = f"{package}:"
        for number, room in enumerate(sorted(rooms)):
            word = room + ("," if number < len(rooms) - 1 else "")
            if len(line) + 1 + len(word) > _LETTERS:
                lines.append(line)
                line = "  "
            line += f" {word}"
        lines.append(line)
    return lines


class Drawing:
    """Collects the elements of the picture."""

    def __init__(self) -> None:
        self._arrows: list[str] = []
        self._under: list[str] = []
        self._over: list[str] = []

    def band(self, package: str, idea: str, x: float, y: float, size: Any) -> None:
        """Draws the frame of a package."""
        width, height = size
        self._under.append(
            f'<rect class="band" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="8"/>'
        )
        self._text("title", x + _PADDING, y + 25, f"{package}/")
        self._text("idea", x + _PADDING, y + 44, idea)

    def box(self, box: Box) -> None:
        """Draws a box with what is written in it."""
        kind = "box" if box.is_folder else "box module"
        self._over.append(
            f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{_BOX_WIDTH}" '
            f'height="{box.height:g}" rx="5"/>'
        )
        at = box.y + 16
        for line in _wrapped(box.label):
            self._text("name", box.x + 9, at, line)
            at += 16
        for line in box.lines:
            self._text("uses", box.x + 9 + 6 * line.startswith(" "), at, line.strip())
            at += _LINE

    def _text(self, kind: str, x: float, y: float, text: str) -> None:
        self._over.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}">{html.escape(text)}</text>'
        )

    def arrow(self, points: Sequence[tuple[float, float]], kind: str = "") -> None:
        """Draws an arrow down through points: curves between rows, lines along them."""
        x, y = points[0]
        path = f"M{x:g} {y:g}"
        for number, (next_x, next_y) in enumerate(points[1:]):
            if number % 2 or next_x == x:
                path += f"L{next_x:g} {next_y:g}"
            else:
                half = (y + next_y) / 2
                path += f"C{x:g} {half:g} {next_x:g} {half:g} {next_x:g} {next_y:g}"
            x, y = next_x, next_y
        wide = 1.8 if kind else 1
        self._arrows.append(f'<path class="{kind or "arrow"}" d="{path}"/>')
        self._arrows.append(
            f'<path class="{kind}head" d="M{x:g} {y + 1:g}l{-4 * wide:g} {-8 * wide:g}'
            f'h{8 * wide:g}z"/>'
        )

    def svg(self, height: float) -> str:
        """Returns the picture."""
        body = "\n".join([*self._under, *self._arrows, *self._over])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
            f'height="{height:g}" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
            'aria-label="The packages of gristmill, their folders and imports">\n'
            f"<style>{_STYLE}</style>\n"
            f'<rect class="page" width="{_WIDTH}" height="{height:g}"/>\n'
            f"{body}\n</svg>\n"
        )


def _wrapped(label: str) -> list[str]:
    lines = [""]
    for word in label.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) > 24:
            lines.append("")
        lines[-1] += word + " "
    return [line.strip() for line in lines]


def route(
    rows: Sequence[Sequence[Box]], start: Box, end: Box, taken: dict[Any, int]
) -> list[tuple[float, float]]:
    """Returns the points of an arrow that goes between the boxes of rows on its way."""
    points = [(start.x, start.y + start.height)]
    for row in range(start.row + 1, end.row):
        boxes = rows[row]
        gaps = [boxes[0].x - _BOX_GAP / 2]
        gaps += [box.x + _BOX_WIDTH + _BOX_GAP / 2 for box in boxes]
        straight = start.x + (end.x - start.x) * (row - start.row) / (
            end.row - start.row
        )
        x = min(gaps, key=lambda gap: abs(gap - straight - _BOX_WIDTH / 2))
        # Arrows in one gap lie beside each other.
        used = taken[row, x] = taken.get((row, x), 0) + 1
        x += (used // 2) * (3 if used % 2 else -3)
        top = min(box.y for box in boxes)
        bottom = max(box.y + box.height for box in boxes)
        points += [(x, top), (x, bottom)]
    return [*points, (end.x, end.y)]


def draw_imports(
    drawing: Drawing, rows: Sequence[Sequence[Box]], imports: list[tuple[int, int]]
) -> None:
    """Draws the arrows of a package. They leave and reach a box side by side."""
    boxes = [box for row in rows for box in row]
    leaving = {
        n: sorted((boxes[b].x, b) for a, b in imports if a == n) for n, _ in imports
    }
    reaching = {
        n: sorted((boxes[a].x, a) for a, b in imports if b == n) for _, n in imports
    }
    taken: dict[Any, int] = {}
    for number, other in imports:
        start, end = boxes[number], boxes[other]
        points = route(rows, start, end, taken)
        out = leaving[number].index((end.x, other)) + 1
        into = reaching[other].index((start.x, number)) + 1
        left = _BOX_WIDTH * out / (len(leaving[number]) + 1)
        right = _BOX_WIDTH * into / (len(reaching[other]) + 1)
        points[0] = (round(points[0][0] + left), points[0][1])
        points[-1] = (round(points[-1][0] + right), points[-1][1])
        if start.row < end.row:
            drawing.arrow(points)


def draw_package(
    drawing: Drawing,
    graph: grimp.ImportGraph,
    layers: dict[str, list[list[str]]],
    package: str,
    place: tuple[float, float, float, float],
) -> float:
    """Draws a package at (x, y), at least so high, and returns its height."""
    x, y, width, least = place
    most = int((width - 2 * _PADDING + _BOX_GAP) // (_BOX_WIDTH + _BOX_GAP))
    rows = boxes_of(graph, layers[package], most)
    names = [name for own in layers for layer in layers[own] for name in layer]
    at = y + _HEADING
    for number, row in enumerate(rows):
        for box in row:
            box.lines = uses_of(graph, box, [n for n in names if n in graph.modules])
            box.height = 8 + 16 * len(_wrapped(box.label)) + _LINE * len(box.lines)
            box.row, box.y = number, at
        used = len(row) * (_BOX_WIDTH + _BOX_GAP) - _BOX_GAP
        for place_in_row, box in enumerate(row):
            box.x = x + (width - used) // 2 + place_in_row * (_BOX_WIDTH + _BOX_GAP)
        at += max(box.height for box in row) + _ROW_GAP
    height = max(at - _ROW_GAP + _PADDING - y, least)
    idea = docstring_of(package)
    drawing.band(package.partition(".")[2], idea, x, y, (width, height))
    boxes = [box for row in rows for box in row]
    draw_imports(drawing, rows, imports_between(graph, boxes))
    for box in boxes:
        drawing.box(box)
    return height


def docstring_of(package: str) -> str:
    """Returns the first sentence of a package's docstring."""
    path = ROOT / package.partition(".")[2].replace(".", "/") / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def draw() -> str:
    """Returns the picture as SVG."""
    graph = grimp.build_graph("gristmill", cache_dir=None)
    layers = read_layers()
    layers.pop("gristmill")
    drawing = Drawing()
    width = _WIDTH - 2 * _MARGIN
    half = (width - _MARGIN) / 2
    left, right = _MARGIN, _MARGIN + half + _MARGIN
    y: float = _MARGIN
    y += draw_package(
        drawing, graph, layers, "gristmill.pipelines", (left, y, width, 0)
    )
    for x in (left + half / 2, right + half / 2):
        drawing.arrow([(x, y), (x, y + _BAND_GAP)], "wide")
    y += _BAND_GAP
    heights = [
        draw_package(Drawing(), graph, layers, package, (left, y, half, 0))
        for package in ("gristmill.transforms", "gristmill.loader")
    ]
    tall = max(heights)
    draw_package(drawing, graph, layers, "gristmill.transforms", (left, y, half, tall))
    draw_package(drawing, graph, layers, "gristmill.loader", (right, y, half, tall))
    y += tall
    for x in (left + half / 2, right + half / 2):
        drawing.arrow([(x, y), (x, y + _BAND_GAP)], "wide")
    y += _BAND_GAP
    y += draw_package(drawing, graph, layers, "gristmill.dataset", (left, y, width, 0))
    return drawing.svg(y + _MARGIN)


def with_tree(page: str) -> str:
    """Returns the page with the tree between its marks written anew."""
    lines = ["```text"]
    for package in _PACKAGES:
        folders = sorted(path.parent for path in (ROOT / package).rglob("__init__.py"))
        for folder in folders:
            path = folder.relative_to(ROOT).as_posix()
            name = "  " * path.count("/") + path.rpartition("/")[2] + "/"
            idea = docstring_of("gristmill." + path.replace("/", "."))
            lines.append(f"{name:<16}{idea}")
    lines.append("```")
    before, _, rest = page.partition(_TREE[0])
    _, _, after = rest.partition(_TREE[1])
    return before + _TREE[0] + "\n".join(lines) + "\n" + _TREE[1] + after


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    PAGE.write_text(with_tree(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
