"""Makes sharded ArrayRecord datasets of many formats, and feeds trainers from them.

Import from the packages below: `gristmill.dataset` (the contract on disk),
`gristmill.transforms` (Beam transforms), `gristmill.pipelines` (whole jobs) and
`gristmill.loader` (what trainers import). Importing this one imports none of them.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
