"""The core and the loader work with every Python that setup.py names.

Each gets a fresh environment with the newest versions of what setup.py requires, and
the wheel that this Python built. A Python that is not on this machine is skipped. Every
second one is tried, and all of them in a soak.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.distributions import ROOT, checked, setup_arguments, wheel

VERSIONS = sorted(
    found[1]
    for each in setup_arguments()["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
)


def interpreter(version):
    """Returns a Python of a minor version, from the PATH or pyenv, if there is one."""
    roots = (os.environ.get("PYENV_ROOT"), pathlib.Path.home() / ".pyenv")
    managed = [
        path
        for root in roots
        if root
        for path in sorted(pathlib.Path(root).glob(f"versions/{version}.*/bin/python"))
    ]
    on_path = shutil.which(f"python{version}")
    for path in [*([on_path] if on_path else []), *managed]:
        # What is on the PATH may be pyenv's, which starts only what is switched on.
        ask = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return pathlib.Path(path)
    return None


PROGRAM = """
import glob
import json
import jax
from gristmill import loader
from gristmill.dataset.arrayrecord import compiled

dataset = loader.open("made/demo")
batches = loader.global_batches(dataset, batch_size=64, seed=42)
decode = loader.ExampleDecoder({"id": loader.FixedFeature("int32")})
with batches.feed(decode=decode, host="jax") as feed:
    ids = [jax.device_get(next(feed)["id"]).tolist() for _ in range(3)]
    state = feed.get_state()
    after = jax.device_get(next(feed)["id"]).tolist()
if __name__ == "__main__":
    with batches.feed(
        decode=decode, host=(0, 1), workers=2
    ) as feed:
        feed.set_state(state)
        assert next(feed)["id"].tolist() == after
    import grain
    shards = sorted(glob.glob("made/demo/*.array_record-*"))
    source = grain.MapDataset.source(loader.ArrayRecordDataSource(shards))
    assert [source[i] for i in (0, 3999)] == [dataset[0], dataset[3999]]
    print(json.dumps({"ids": ids, "compiled": compiled.is_compiled()}))
"""


def test_setup_names_every_python_from_the_oldest():
    arguments = setup_arguments()
    oldest = arguments["python_requires"].removeprefix(">=")
    numbers = [int(version.partition(".")[2]) for version in VERSIONS]
    assert VERSIONS[0] == oldest
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    text = (ROOT / "README.md").read_text("utf-8")
    assert f"Python {VERSIONS[0]} to {VERSIONS[-1]}" in text


def test_no_pattern_repeats_a_group_possessively():
    """Python 3.11.0 to 3.11.4 matches too little then (cpython issue 106052)."""
    folders = ("dataset", "transforms", "pipelines", "loader")
    sources = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    wrong = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")
    assert all(map(wrong.search, ("(?:a|b)*+", "(ab){1,2}+")))
    found = [str(path) for path in sources if wrong.search(path.read_text("utf-8"))]
    assert found == []


@pytest.fixture
def made(tmp_path):
    """Names the folder of an environment, which is too large to be kept."""
    path = tmp_path / "environment"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_core_and_loader(version, made, tmp_path):
    if version == "{}.{}".format(*sys.version_info[:2]):
        pytest.skip("all other tests run with it")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on the PATH or of pyenv")
    uv = shutil.which("uv", path=f"{pathlib.Path(sys.executable).parent}")
    uv = uv or shutil.which("uv")
    if uv is None:
        pytest.skip("there is no uv, which installs the requirements")
    checked(uv, "venv", "--quiet", "--python", python, made, cwd=tmp_path)
    inside = made / "bin" / "python"
    what = f"gristmill[loader] @ {wheel().as_uri()}"
    install = [uv, "pip", "install", "--quiet", "--python", str(inside), what]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if "error sending request" in done.stderr:
        pytest.skip("the package registry cannot be reached")
    assert done.returncode == 0, done.stderr

    gristmill = made / "bin" / "gristmill"
    checked(gristmill, "demo", "made", cwd=tmp_path)
    assert "4,000 records" in checked(gristmill, "verify", "made/demo", cwd=tmp_path)
    script = tmp_path / "feed.py"
    script.write_text(PROGRAM)
    printed = checked(inside, script, cwd=tmp_path).splitlines()[-1]
    # The same bytes, and the same order, as this Python has.
    from gristmill import loader

    dataset = loader.open(tmp_path / "made" / "demo")
    batches = loader.global_batches(dataset, batch_size=64, seed=42)
    decode = loader.ExampleDecoder({"id": loader.FixedFeature("int32")})
    expected = [decode(batches.read(step))["id"].tolist() for step in range(3)]
    assert json.loads(printed)["ids"] == expected
