"""The environments that loaders run in: this one, or one of their own.

`python -m benchmarks.resume.environments FOLDER LOADER...` makes those of loaders, from
a package registry; so does `python -m benchmarks.resume`, where they are not there.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

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
    """Returns the Python of a loader's environment, which is made if there is none.

    Args:
        loader: Name of the adapter.
        folder: Where environments are kept.
        quick: Whether what `dev` installs has to do.
    """
    if loader in _HERE or (quick and loader in QUICK):
        return pathlib.Path(sys.executable)
    venv = (folder / loader).absolute()
    python = venv / "bin" / "python"
    if not (venv / "made").exists():
        uv = (
            [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
        )
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        new = [*uv, "venv", "-q", "--clear", "--python", version, str(venv)]
        subprocess.run(new, check=True)
        install = [*uv, "pip", "install", "-q", "--python", str(python)]
        subprocess.run([*install, *_OWN[loader]], check=True)
        (venv / "made").touch()
    return python


def versions(python, packages):
    """Returns the versions of packages in an environment."""
    code = "import sys, importlib.metadata as m; "
    code += "print(*(m.version(name) for name in sys.argv[1:]))"
    found = subprocess.check_output([str(python), "-c", code, *packages], text=True)
    return dict(zip(packages, found.split(), strict=True))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(python_of(name, pathlib.Path(sys.argv[1]), quick=False))
