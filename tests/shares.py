"""Shares of many cases: some always run, and all of them in a soak."""

import collections

MARK = "one_in"


def rare(items):
    """Yields the cases of tests marked `one_in(n)` that run in a soak only."""
    cases = collections.defaultdict(list)
    every = {}
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None:
            key = item.nodeid.split("[")[0], str(mark.args)
            cases[key].append(item)
            (every[key],) = mark.args
    for key, some in cases.items():
        kept = always([item.callspec.indices for item in some], every[key])
        yield from (item for number, item in enumerate(some) if number not in kept)


def always(cases, every):
    """Returns the numbers of the cases that always run: about one in `every`.

    Each value of each parameter is in one of them, where there are several lists of
    values: first those of which nothing else has any value, so that they are few.

    Args:
        cases: Of each case, the index of the value of each parameter.
        every: One in so many cases runs, or more.
    """
    # Names that one list gives values to have the same index in every case.
    lists = {tuple(case[name] for case in cases): name for name in cases[0]}.values()
    if len(lists) == 1:
        return set(range(0, len(cases), every))
    kept = set()
    seen = set()
    for enough in (len(lists), 1):
        for number, case in enumerate(cases):
            values = {(name, case[name]) for name in lists}
            if len(values - seen) >= enough:
                kept.add(number)
                seen |= values
    others = [number for number in range(len(cases)) if number not in kept]
    missing = max(0, -(-len(cases) // every) - len(kept))
    return kept | set(others[: missing * every : every])
