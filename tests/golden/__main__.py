"""Keeps the results of today's code: `python -m tests.golden [WORD ...]`.

Runs the cases whose group or name contains one of the words, or all cases, and writes
their results. `git diff tests/golden/results` then shows what changed.
"""

import json
import pathlib
import sys
import tempfile

from tests.golden.cases import RESULTS, all_cases


def main(words):
    """Runs cases, and writes their results."""
    cases = all_cases()
    for group in sorted({case.group for case in cases}):
        file = RESULTS / f"{group}.json"
        facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        names = {case.name for case in cases if case.group == group}
        facts = {name: fact for name, fact in facts.items() if name in names}
        for case in cases:
            wanted = not words or any(w in f"{group}.{case.name}" for w in words)
            if case.group == group and wanted:
                with tempfile.TemporaryDirectory() as folder:
                    facts[case.name] = case.run(pathlib.Path(folder))
                print(f"{group}.{case.name}")
        text = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
