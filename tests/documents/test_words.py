"""The pages that a person has to read stay few enough."""

from docs import count_words


def test_all_pages_together_are_short_enough():
    found = count_words.counts()
    assert "README.md" in found
    assert not any(name.startswith("docs/performance/") for name in found)
    assert sum(found.values()) <= count_words.MOST, "python -m docs.count_words"
