"""Runs a trainer of MaxText on datasets of gristmill, with the trainer's arguments.

    python -m gristmill.loader.maxtext [-m MODULE] FILE.yml NAME=VALUE ...

MODULE is `maxtext.trainers.pre_train.train` unless given. Arguments that begin with
`gristmill_` are those of `install`; all others are MaxText's.
"""

from __future__ import annotations

import runpy
import sys

from gristmill.dataset.base.errors import GristmillError
from gristmill.loader.maxtext.installation import check_fed, install_options
from gristmill.loader.maxtext.settings import Options

PRE_TRAIN = "maxtext.trainers.pre_train.train"


def main(arguments: list[str]) -> None:
    """Replaces MaxText's data iterators, and runs a module of it as a script."""
    module = PRE_TRAIN
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        module, arguments = arguments[1], arguments[2:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    options, theirs = Options.taken_from(arguments)
    install_options(options)
    sys.argv = [module, *theirs]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as e:  # MaxText's trainers end so, also in success.
        if e.code:
            raise
    check_fed(module)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GristmillError as e:
        sys.exit(f"gristmill.loader.maxtext: {e}")
