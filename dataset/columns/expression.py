"""Expressions over columns, such as `score > 0.5 and language == 'de'`.

Python's grammar, with a short list of what is allowed. Comparisons mean what they mean
in Python: numbers of any types are compared with all their digits.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.columns.column_file import ColumnType

Bools = npt.NDArray[np.bool_]
Values = Mapping[str, npt.NDArray[Any]]
_ALLOWED = (
    "comparisons, and, or, not, in, numbers, texts, True, False, lists of these, and "
    "names of columns"
)
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Expression:
    """A condition on the columns of a record.

    Args:
        text: The condition.
        columns: The existing columns.

    Attributes:
        names: Those that it needs, sorted.

    Raises:
        InputError: It has a part that is not allowed, or compares texts with numbers.
    """

    def __init__(self, text: str, columns: Mapping[str, ColumnType]):
        self.text, self._columns = text, columns
        self._constants = functools.cache(self._constants_of)  # There can be many.
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            names = {n.id for n in ast.walk(self._tree) if isinstance(n, ast.Name)}
            self.names = sorted(names)
            # What is not allowed is refused for no record, too.
            self.evaluate({name: kind.empty() for name, kind in columns.items()})
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            if isinstance(e, InputError):
                raise
            got = e.msg if isinstance(e, SyntaxError) else str(e)
            raise self._refused("cannot be read", got) from e

    def evaluate(self, values: Values) -> Bools:
        """Returns whether each of some records fulfils it.

        Args:
            values: [n], the values of each column of `names`.
        """
        found: Bools = np.asarray(self._condition(self._tree, values), np.bool_)
        return found

    def _refused(
        self, what: str, got: ast.expr | str, expected: str = _ALLOWED
    ) -> InputError:
        return InputError(
            f"the expression {what}",
            where=self.text,
            expected=expected,
            got=got if isinstance(got, str) else ast.unparse(got),
            cure="correct it, such as: score > 0.5 and language == 'de'",
        )

    def _condition(self, node: ast.expr, values: Values) -> Any:
        if isinstance(node, ast.BoolOp):
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return join.reduce([self._condition(each, values) for each in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return np.logical_not(self._condition(node.operand, values))
        if isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            pairs = zip(terms, node.ops, terms[1:], strict=False)
            return np.logical_and.reduce([self._compared(*p, values) for p in pairs])
        if isinstance(node, ast.Name) and self._column(node.id).dtype == "bool":
            return values[node.id]
        raise self._refused("has a part that is no condition", node)

    def _column(self, name: str) -> ColumnType:
        kind = self._columns.get(name)
        if kind is None:
            known = "a column of all editions, such as `gristmill attach` adds, with "
            known += "--map of what records hold: there is none; after an append, "
            known += "attach it again"
            if self._columns:
                known = f"one of {some_of(self._columns, 20)}"
            raise self._refused(f"names no column {name!r}", name, known)
        if kind.shape:
            raise self._refused(
                "compares arrays", f"{name}: {kind}", "columns with a single value"
            )
        return kind

    def _constant(self, node: ast.expr) -> Any:
        """Returns a number, a text or a truth value."""
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            value = None
        if isinstance(value, (bool, int, float, str)):
            return value
        raise self._refused("has a part that is not allowed", node)

    def _constants_of(self, *nodes: ast.expr) -> frozenset[Any]:
        return frozenset(map(self._constant, nodes))

    def _term(self, node: ast.expr, values: Values) -> tuple[Any, bool]:
        """Returns a side of a comparison, and whether it is text."""
        if isinstance(node, ast.Name):
            is_text = self._column(node.id).is_text
            return values[node.id], is_text
        value = self._constant(node)
        return value, isinstance(value, str)

    def _compared(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr, values: Values
    ) -> Any:
        if isinstance(op, ast.In):
            return self._membership(left, right, values)
        if isinstance(op, ast.NotIn):
            return np.logical_not(self._membership(left, right, values))
        compare = _COMPARISONS.get(type(op))
        shown = ast.Compare(left, [op], [right])
        if compare is None:
            raise self._refused("has a part that is not allowed", shown)
        first, text = self._term(left, values)
        second, other_text = self._term(right, values)
        if text != other_text:
            raise self._refused("compares a text with a number", shown)
        if not isinstance(left, ast.Name) and not isinstance(right, ast.Name):
            raise self._refused("compares two constants", shown)
        return compared(compare, first, second)

    def _membership(self, left: ast.expr, right: ast.expr, values: Values) -> Any:
        if isinstance(right, ast.Name) and isinstance(left, ast.Constant):
            part, name = self._constant(left), right.id
            if not isinstance(part, str) or not self._column(name).is_text:
                raise self._refused("looks for a part of what is no text", left)
            return np.array([part in value for value in values[name]], np.bool_)
        if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not isinstance(
            left, ast.Name
        ):
            shown = f"in {ast.unparse(left)}"
            raise self._refused("has a part that is not allowed", shown)
        own, text = self._term(left, values)
        wanted = self._constants(*right.elts)
        if any(isinstance(each, str) != text for each in wanted):
            raise self._refused("compares a text with a number", left)
        if text:
            return np.array([value in wanted for value in own], np.bool_)
        found: Bools = np.zeros(len(own), np.bool_)
        for each in wanted:
            found |= compared(operator.eq, own, each)
        return found


def compared(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Returns a comparison of arrays or constants, exact as Python's own.

    numpy rounds whole numbers to compare them with floats. This can be wrong only where
    both sides are then equal, and too large for floats to hold every whole number.
    """
    left, right = _side(left), _side(right)
    if _is_float(left) == _is_float(right):
        return compare(left, right)
    one, other = _rounded(left), _rounded(right)
    found = np.asarray(compare(one, other))
    doubtful = (one == other) & (np.abs(one) >= 1 << 53)
    if doubtful.any():
        sides = (np.broadcast_to(side, found.shape)[doubtful] for side in (left, right))
        found[doubtful] = compare(*(side.astype(object) for side in sides))
    return found


def _side(value: Any) -> Any:
    """Returns a side of a comparison in a form that numpy compares exactly."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        # numpy strips trailing zeros from texts of its own type.
        return np.array(value, object)
    if isinstance(value, float):
        return np.float64(value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "b":
        return value.astype(np.int8)
    return value


def _is_float(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.floating)) and value.dtype.kind == "f"


def _rounded(value: Any) -> Any:
    try:
        return np.asarray(value, np.float64)
    except OverflowError:
        return np.copysign(np.inf, 1 if value > 0 else -1)
