"""The environments that loaders run in: this one, or one of their own."""

import sys

from tests.with_maxtext.environment import install

# gristmill's extra `dev` installs what the others need.
_OWN = {
    "streaming": ["mosaicml-streaming==0.13.0", "torch", "torchvision"],
    "litdata": ["litdata==0.2.76", "torch", "torchvision"],
    "energon": ["megatron-energon==7.4.1", "webdataset==1.0.2", "torch"],
    "torchdata": ["torchdata==0.11.0", "numpy", "torch"],
    "hf_datasets": ["datasets==5.2.0", "torchdata==0.11.0", "torch"],
    # Without PyTorch it has no worker processes.
    "webdataset": ["webdataset==1.0.2", "numpy", "torch"],
}
_HERE = ("gristmill", "grain_map", "grain_elastic", "grain_loader", "tf_data")
LOADERS = (*_HERE, *_OWN)
QUICK = ("gristmill", "grain_map", "tf_data", "webdataset")


def python_of(loader, folder, *, quick):
    """Returns the Python of a loader's environment, which is made or renewed.

    Args:
        loader: Name of the adapter.
        folder: Where environments are kept.
        quick: Whether what `dev` installs has to do.
    """
    if loader in _HERE or (quick and loader in QUICK):
        return sys.executable
    return install(folder / loader, sys.executable, *_OWN[loader])
