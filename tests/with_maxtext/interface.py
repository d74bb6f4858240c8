"""The interface of MaxText that gristmill replaces, calls and reads, as recorded.

Tests without MaxText build their stand-in from the record.
"""

import ast
import enum
import importlib
import importlib.metadata
import inspect
import json
import re

_FUNCTIONS = {
    "common.data_loader": ("loader_exception_guard",),
    "common.grain_utility": ("for_save", "for_restore"),
    "input_pipeline.data_processing_utils": ("get_local_batch_size",),
    "input_pipeline.grain_data_processing": (
        *("get_datasets", "make_grain_train_iterator", "make_grain_eval_iterator"),
    ),
    "input_pipeline.input_pipeline_interface": (
        *("create_data_iterator", "create_process_specific_iterator"),
    ),
    "input_pipeline.multihost_dataloading": ("MultiHostDataLoadIterator",),
    "utils.max_logging": ("log",),
}
_ATTRIBUTES = {
    "maxtext.common.grain_utility": ["ElasticIterator"],
    "maxtext.input_pipeline.input_pipeline_interface": [
        *("create_data_iterator", "make_grain_eval_iterator"),
        "make_grain_train_iterator",
    ],
    "maxtext.utils.exceptions": ["StopTraining"],
}
_READERS = (
    "common.grain_utility",
    "input_pipeline.data_processing_utils",
    "input_pipeline.grain_data_processing",
    "input_pipeline.input_pipeline_interface",
    "input_pipeline.multihost_dataloading",
)
_PACKAGES = ("maxtext", "jax", "grain", "orbax-checkpoint", "numpy", "gristmill")


def recorded():
    """Returns the interface of the MaxText that is installed, as JSON."""
    for module, names in _ATTRIBUTES.items():
        for name in names:
            getattr(importlib.import_module(module), name)
    found = {
        "maxtext": importlib.metadata.version("maxtext"),
        "signatures": {
            f"maxtext.{module}.{name}": signature_of(
                getattr(importlib.import_module(f"maxtext.{module}"), name)
            )
            for module, names in _FUNCTIONS.items()
            for name in names
        },
        "attributes": _ATTRIBUTES,
        "settings": _settings(),
    }
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def check(path):
    """Checks that the record is what is installed; the error has what differs."""
    before, after = map(_facts, (path.read_text(), recorded()))
    names = sorted(before.keys() | after.keys())
    differing = [name for name in names if before.get(name) != after.get(name)]
    assert not differing, f"not as in {path.name}: {', '.join(differing)}"


def _facts(text):
    """Returns each fact of a record by a name."""
    found = json.loads(text)
    facts = {f"maxtext {found.pop('maxtext')}": True}
    for part, entries in found.items():
        facts |= {f"{part}: {name}": entry for name, entry in entries.items()}
    return facts


def versions():
    """Returns what is installed, for the report."""
    found = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    return ", ".join(found)


def signature_of(function):
    """Returns name, kind and default of each parameter."""
    return [
        [
            each.name,
            each.kind.name,
            None if each.default is each.empty else repr(each.default),
        ]
        for each in inspect.signature(function).parameters.values()
    ]


def _settings():
    """Returns the settings that MaxText's Grain pipeline reads."""
    from maxtext.configs import types

    readers = {}
    for module in _READERS:
        source = inspect.getsource(importlib.import_module(f"maxtext.{module}"))
        for node in ast.walk(ast.parse(source)):
            if (name := _setting_read(node)) is not None:
                readers.setdefault(name, set()).add(module.rpartition(".")[2])
    fields = types.MaxTextConfig.model_fields
    return {
        name: {**_kind_of(fields.get(name)), "read_in": sorted(where)}
        for name, where in sorted(readers.items())
    }


def _setting_read(node):
    """Returns the NAME of `config.NAME` and of `getattr(config, "NAME")`."""
    match node:
        case ast.Attribute(value=ast.Name(id="config"), attr=name):
            return None if name in ("keys", "values", "get_keys") else name
        case ast.Call(
            func=ast.Name(id="getattr"), args=[ast.Name(id="config"), name, *_]
        ):
            return str(name.value) if isinstance(name, ast.Constant) else None
    return None


def _kind_of(field):
    if field is None:
        return {"type": "computed", "default": None}
    default = None
    if not field.is_required():
        default = field.get_default(call_default_factory=True)
    if isinstance(default, enum.Enum):
        default = default.value
    try:
        json.dumps(default)
    except TypeError:
        default = None
    kind = re.sub(r"maxtext\.configs\.types\.|typing\.", "", str(field.annotation))
    return {"type": kind, "default": default}
