"""Statistics of feeds: counts, causes of waiting, and their export."""
