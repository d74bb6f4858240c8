"""Promises of loaders' documentation about the cases of the test of resuming.

A case that is not here is promised. The texts are about the versions that are tested.
"""

# Where the documentation of each loader was read.
SOURCES = {
    "gristmill": "docs/concepts/determinism.md, clauses 10 and 11",
    "grain_map": "docstrings of grain 0.2.18",
    "grain_elastic": "docstring of `ElasticIterator`, grain 0.2.18",
    "grain_loader": "grain 0.2.18",
    "tf_data": "TensorFlow's guide `tf.data`",
    "streaming": "Streaming's pages `Fast Resumption`, `Elastic Determinism`",
    "litdata": "LitData's README",
    "energon": "Energon's pages `Save and Restore`, `Reproducible Scaling`",
    "torchdata": "`torchdata.stateful_dataloader`, API and tutorial",
    "hf_datasets": "docstring of `IterableDataset.state_dict`, datasets 5.2.0",
    "webdataset": "webdataset/webdataset, issues 177, 234 and 271",
}
_SILENT = "says nothing about it"
# Why cases of loaders count as not promised.
NEVER = {
    "gristmill": {},
    "grain_map": {
        "hosts": "for other hosts there is `ElasticIterator`",
        "workers": "`mp_prefetch` promises the order for one number of workers",
        "added": _SILENT,
        "other": _SILENT,
    },
    "grain_elastic": {"added": _SILENT, "other": _SILENT},
    "grain_loader": {"hosts": _SILENT, "workers": _SILENT, "added": _SILENT},
    "tf_data": {"hosts": _SILENT, "added": _SILENT, "other": _SILENT},
    "streaming": {"added": _SILENT, "other": _SILENT},
    "litdata": {"added": _SILENT},
    "energon": {
        "workers": "the product of ranks and workers must stay",
        "added": _SILENT,
        "other": _SILENT,
    },
    "torchdata": {
        "hosts": '"aggregation and distribution of state across workers (but not '
        'across ranks)"',
        "workers": _SILENT,
        "added": _SILENT,
        "other": _SILENT,
    },
    "hf_datasets": {
        **dict.fromkeys(
            ("stopped", "mixture", "packing", "killed"),
            '"examples from shuffle buffers are lost when resuming"',
        ),
        "hosts": _SILENT,
        "workers": _SILENT,
        "added": _SILENT,
        "other": _SILENT,
    },
    "webdataset": dict.fromkeys(
        ("stopped", "hosts", "workers", "mixture", "killed", "added", "other"),
        "it has no state; its author advises `resampled=True`, where a restart draws "
        "from the same distribution",
    ),
}
