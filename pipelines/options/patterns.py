"""Patterns of values of options."""

# POSIX extended regular expressions, as Dataflow checks the parameters of templates.
# They must match the whole value. Python's `re` reads them alike.
GS_PATH = "gs://[^,]+"
GS_PATHS = f"{GS_PATH}(,{GS_PATH})*"
POSITIVE = "0*[1-9][0-9]*"
SIZE = "[0-9]+([.][0-9]+)? *([kKmMgGtTpP]?[bB]|[kKmMgGtTpP][iI][bB])?"
