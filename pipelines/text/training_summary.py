"""The fields of the EU's public summary of training content, as far as data tell them.

Article 53(1)(d) of Regulation (EU) 2024/1689 asks providers of general-purpose models
for it, and the template of the AI Office from July 2025 names the fields. What only the
provider knows is an empty text here.
"""

from __future__ import annotations

from typing import Any

_TEXT_SIZES = (
    (10**9, "Less than 1 billion tokens"),
    (10**13 + 1, "1 billion to 10 trillion tokens"),
)
_MORE = "More than 10 trillion tokens"
_USED = "used", "modalities", "description", "additional_comments"
_FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "1_general_information": {
        "summary": ("version", "last_update", "link_to_previous_versions"),
        "1.1_provider": (
            *("name", "contact", "representative_name", "representative_contact"),
        ),
        "1.2_model": ("versioned_names", "dependencies", "date_placed_on_market"),
        "1.3_characteristics": (
            *("latest_date_of_acquisition", "languages", "other_characteristics"),
        ),
    },
    "2_list_of_data_sources": {
        "2.1_publicly_available_datasets": (*_USED, "large_datasets"),
        "2.2.1_licensed_datasets": _USED,
        "2.2.2_private_datasets_of_third_parties": (*_USED, "publicly_known_datasets"),
        "2.3_crawled_and_scraped_data": (
            *(*_USED, "crawlers", "purposes", "behaviour", "period", "top_domains"),
        ),
        "2.4_user_data": (*_USED, "services"),
        "2.5_synthetic_data": (*_USED, "models"),
        "2.6_other_sources": _USED,
    },
    "3_data_processing": {
        "3.1_reservation_of_rights": ("code_of_practice", "measures"),
        "3.2_illegal_content": ("measures",),
        "3.3_other": ("information",),
    },
}
_MODALITIES = "text", "image", "audio", "video", "other"


def training_summary(
    *, text_tokens: int | None, sources: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the summary, as JSON values.

    Args:
        text_tokens: Different tokens of text that were seen; None if not known.
        sources: What the data know of each source, whatever kind of source it is.
    """
    found: dict[str, Any] = {
        section: {part: dict.fromkeys(names, "") for part, names in parts.items()}
        for section, parts in _FIELDS.items()
    }
    sizes: dict[str, dict[str, Any]] = {
        name: {"size": "", "types_of_content": "", "tokens": ""} for name in _MODALITIES
    }
    if text_tokens:
        fitting = (text for limit, text in _TEXT_SIZES if text_tokens < limit)
        sizes["text"] |= {"size": next(fitting, _MORE), "tokens": text_tokens}
    found["1_general_information"]["1.3_characteristics"]["modalities"] = sizes
    found["2_list_of_data_sources"]["sources_seen_by_the_run"] = sources
    return found
