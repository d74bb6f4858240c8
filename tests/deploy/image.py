"""The image of deploy/Dockerfile without Docker: its commands, and what they make here.

Each RUN command of the stage `build` runs by itself, as a user who is not root, in a
folder in place of /opt/gristmill. Where there is uv, it installs what pip would, in a
tenth of the time, and compares the same hashes; pip itself does so in a soak.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from tests.support import shared
from tests.support.distributions import ROOT

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
PLACE = "/opt/gristmill"
# What the commands know of this environment: where packages come from.
_VARIABLES = ("PIP_", "SSL_", "UV_")
# Nobody: the user of commands, where the tests run as root.
USER = 65534
_UV_INSTALL = "uv pip install --no-config --python venv/bin/python"


def stage(name):
    """Returns the instructions of a stage, "" for the last one."""
    stages = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[1:]
    names = re.findall(r"^FROM \S+(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE)
    return stages[names.index(name)]


def commands(name):
    """Returns the RUN commands of a stage, in order."""
    text = stage(name).replace("\\\n", " ")
    return re.findall(r"^RUN (.+)$", text, re.MULTILINE)


def copied(name):
    """Yields what a stage copies from the source, and where to."""
    for line in re.findall(r"^COPY (?!--from)(.+)$", stage(name), re.MULTILINE):
        words = [word for word in line.split() if not word.startswith("--")]
        yield words[:-1], words[-1]


def python_for_user():
    """Returns a Python of this version, by its minor number, that the user can run.

    One in a home of root it cannot: then the system's.
    """
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    path = os.pathsep.join(["/usr/local/bin", "/usr/bin", os.environ["PATH"]])
    for found in filter(None, (sys._base_executable, shutil.which(name, path=path))):
        probe = ("sh", "-c", '"$0" -c "import ensurepip, ssl, venv"', found)
        if run_as_user(*probe, cwd=pathlib.Path("/")).returncode == 0:
            return found
    raise LookupError(f"no {name} with venv that user {USER} can run")


def run_as_user(*command, cwd, path=""):
    """Runs a command as a user who is not root, with a home that is its folder."""
    is_root = os.geteuid() == 0
    identity = {"user": USER, "group": USER, "extra_groups": []} if is_root else {}
    return subprocess.run(
        command,
        cwd=cwd,
        env={
            "HOME": str(cwd),
            "PATH": os.pathsep.join(filter(None, [path, os.environ["PATH"]])),
            # Compiling all modules takes as long as installing them: few are imported.
            "PIP_COMPILE": "0",
            **{k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)},
            "UV_CACHE_DIR": str(cwd / "uv-cache"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
        check=False,
        **identity,
    )


def make_by_pip(folder):
    """Runs the commands of the stage `build` in a folder, which exists and is empty."""
    _make(folder, None)


def make(folder):
    """Does as `make_by_pip`, but has uv install what is fetched, where there is uv."""
    beside = pathlib.Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ["PATH"]])
    _make(folder, shutil.which("uv", path=path))


def _give(folder):
    """Lets the user own a folder and what is in it."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)


def _make(folder, uv):
    first, *others = commands("build")
    assert first.startswith("useradd"), "the only command that root runs"
    # As `install --directory --owner` in the image; the way to it is open.
    shared.folder().chmod(0o711)
    _give(folder)
    python = folder / "bin"
    python.mkdir()
    (python / "python").symlink_to(python_for_user())
    if uv is not None:
        shutil.copy(uv, python / "uv")
    for names, target in copied("build"):
        place = folder / target
        place.mkdir(exist_ok=True, parents=True)
        for name in names:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            if source.is_dir():
                shutil.copytree(source, place, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(source, place)
    _give(folder / "source")
    path = f"{folder / 'venv' / 'bin'}{os.pathsep}{python}"
    for command in others:
        here = command.replace(PLACE, str(folder))
        if uv is not None:
            here = here.replace("pip install --no-cache-dir", _UV_INSTALL)
            here = here.replace(" --use-pep517", "")  # It knows no other way.
        done = run_as_user("bash", "-euc", here, cwd=folder, path=path)
        assert done.returncode == 0, f"{command}\n{done.stdout}"


def environment(*, by_pip=False):
    """Returns the folder in place of /opt/gristmill, made once for all processes."""
    if by_pip:
        return shared.made_once("image-by-pip", make_by_pip)
    return shared.made_once("image", make)
