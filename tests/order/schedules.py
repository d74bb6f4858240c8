"""Schedules of one phase, and how exact mixtures are."""

from fractions import Fraction

from gristmill.loader.order.mixture import Leaf, dealing_tree
from gristmill.loader.order.schedule import Phase, Schedule


def schedule_of(*, orders, batch_size, mixture=None):
    """Returns a schedule of one phase."""
    phase = Phase(
        orders=orders,
        numbers=tuple(range(len(orders))),
        mixture=mixture,
        batch_size=batch_size,
    )
    return Schedule(phases=(phase,), drop_remainder=True)


def bounds_of(mixture):
    """Returns the largest possible error of each dataset's count."""
    bounds = [Fraction(0)] * mixture.num_datasets
    stack = [(dealing_tree(mixture.weights), Fraction(0))]
    while stack:
        node, inherited = stack.pop()
        if isinstance(node, Leaf):
            bounds[node.dataset] = inherited
            continue
        for child in (node.left, node.right):
            share = Fraction(child.weight, node.weight)
            stack.append((child, inherited * share + Fraction(1, 2)))
    return tuple(bounds)
