"""Keeps the results of today's code: `python -m tests.golden [WORD ...]`.

Runs the cases whose group or name contains one of the words, or all cases, and writes
their results. `git diff tests/golden/results` then shows what changed.
"""

import json
import sys
import tempfile

from tests.golden.cases import GROUPS, RESULTS, all_cases, kept


def main(words):
    """Runs cases, and writes their results."""
    for group in GROUPS:
        before, facts = kept(group), {}
        for case in all_cases():
            title = f"{group}.{case.name}"
            if case.group != group:
                continue
            if not words or any(word in title for word in words):
                with tempfile.TemporaryDirectory() as folder:
                    facts[case.name] = case.run(folder)
                print(title)
            elif case.name in before:
                facts[case.name] = before[case.name]
        text = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False)
        (RESULTS / f"{group}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
