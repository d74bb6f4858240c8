"""Schedules of one phase, and how exact mixtures are."""

from fractions import Fraction

from gristmill.loader.order.mixture import DealingTree
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
    tree = DealingTree(mixture.weights)
    bounds = [Fraction(0)] * len(tree.weights)
    for sides in reversed(tree.sides):
        for node in sides:
            fork = tree.fork_of[node]
            share = Fraction(tree.weights[node], tree.weights[fork])
            bounds[node] = bounds[fork] * share + Fraction(1, 2)
    return tuple(bounds[: len(mixture.weights)])
