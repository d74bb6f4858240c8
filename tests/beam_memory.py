"""Has Beam work out things about classes and functions once, not for every pipeline.

It reads the signatures of some thirty methods each time that it meets a `DoFn`, and
makes a parser of arguments each time that it looks at options: together half of the
work of a small pipeline. Nothing that depends on a pipeline is kept.
"""

import copy
import functools
import types
import weakref

PLAIN = (str, int, float, bool, list, dict, type(None))


@functools.cache
def remember():
    """Begins to remember, in this process."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms import core

    signatures = weakref.WeakKeyDictionary()
    read = core.get_function_args_defaults

    def get_function_args_defaults(f):
        function = getattr(f, "__func__", None)
        if not isinstance(function, types.FunctionType):
            return read(f)
        if function not in signatures:
            signatures[function] = read(f)
        names, defaults = signatures[function]
        return list(names), list(defaults)

    parsed = {}
    look = PipelineOptions.view_as

    def view_as(self, cls):
        if self._flags is None or cls.__init__ is not PipelineOptions.__init__:
            return look(self, cls)
        key = cls, tuple(self._flags)
        if key not in parsed:
            found = cls(self._flags)._visible_options
            plain = all(isinstance(value, PLAIN) for value in vars(found).values())
            parsed[key] = found if plain else None
        if parsed[key] is None:
            return look(self, cls)
        view = cls.__new__(cls)
        view._flags, view._all_options = self._flags, self._all_options
        # A pipeline may add to its lists.
        view._visible_options = copy.deepcopy(parsed[key])
        for name, value in vars(view._visible_options).items():
            self._all_options.setdefault(name, value)
        return view

    core.get_function_args_defaults = get_function_args_defaults
    PipelineOptions.view_as = view_as
