"""The differences of two jobs, in words."""

from __future__ import annotations

from typing import Any

# What it means that a digest differs, whose own characters say nothing.
_DIGESTED = {
    "digest": "the tokenizer has other code or files",
    "map_code_digest": "the file with the --map function was edited",
}

# How many shards a plan makes, by its kind.
_PLANS = {
    "match_shards": "a shard for each file",
    "num_shards": "{value:,} shards",
    "shard_bytes": "{value:,} bytes of input a shard",
}


def option_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns a line for each option that differs."""
    found = []
    # Tokenizers have up to thousands of special tokens, and a digest that differs.
    for name in sorted((old.keys() | new.keys()) - {"special_ids"}):
        before, after = (_plan_text(one.get(name)) for one in (old, new))
        if isinstance(before, dict) and isinstance(after, dict):
            found += [f"{name}.{line}" for line in option_differences(before, after)]
        elif before != after and isinstance(before or after, dict):
            was, now = ("given" if side else "not" for side in (before, after))
            found.append(f"{name} was {was}, is {now}")
        elif before != after and before and after and name in _DIGESTED:
            found.append(f"{name} changed: {_DIGESTED[name]}")
        elif before != after and name == "plan":
            found.append(f"the plan was {before}, is {after}")
        elif before != after:
            found.append(f"{name} was {before!r}, is {after!r}")
    return found


def _plan_text(option: Any) -> Any:
    """Returns a plan of shards in words, and any other option as it is."""
    is_plan = isinstance(option, dict) and option.get("kind") in _PLANS
    return _PLANS[option["kind"]].format(**option) if is_plan else option
