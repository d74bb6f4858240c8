"""The image: linted, of one version of Beam, from hashes alone, without root."""

import os
import pathlib
import re
import stat

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from gristmill.transforms.beam.same_code import sources_digest
from tests.deploy import image
from tests.deploy.image import DOCKERFILE, ROOT, commands, copied
from tests.deploy.tools import run, tool
from tests.support.distributions import CAN_COMPILE, setup_arguments

DEPLOY = ROOT / "deploy"
LOCK = DEPLOY / "requirements.lock"
NEWEST_PYTHON = "3.14"


def arguments():
    """Returns the build arguments and their defaults."""
    return dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))


def pins():
    """Returns the versions of each package in the lock."""
    found = {}
    for line in re.findall(r"^([a-z0-9][\w.-]*==[^\\]+) \\$", LOCK.read_text(), re.M):
        requirement = Requirement(line)
        (pin,) = requirement.specifier
        found.setdefault(requirement.name, set()).add(pin.version)
    return found


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_dockerfile_is_clean():
    done = run(tool("hadolint"), DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""


def test_versions_are_the_same_everywhere():
    beam = arguments()["BEAM_IMAGE"].rpartition(":")[2]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    (pin,) = [Requirement(r) for r in lines if r.startswith("apache-beam")]
    extra = map(Requirement, setup_arguments()["extras_require"]["beam"])
    (wanted,) = [required for required in extra if required.name == "apache-beam"]
    assert str(pin.specifier) == f"=={beam}"
    least = next(s.version for s in wanted.specifier if s.operator == ">=")
    assert Version(beam).release[:2] == Version(least).release[:2]
    guide = (DEPLOY / "README.md").read_text("utf-8")
    assert beam in guide
    assert arguments()["LAUNCHER_IMAGE"] in guide
    assert f"3.11 to {NEWEST_PYTHON}" in DOCKERFILE
    assert arguments()["PYTHON"] == "3.11"
    for name in ("BEAM_IMAGE", "BUILD_IMAGE", "PYTHON_IMAGE"):
        assert "${PYTHON}" in arguments()[name]


def test_beam_supports_no_newer_python():
    import importlib.metadata

    about = importlib.metadata.metadata("apache-beam").get_all("Classifier")
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(about))
    assert max(versions, key=Version) == NEWEST_PYTHON


def test_nothing_is_installed_at_start():
    assert re.findall(r"FLEX_TEMPLATE_\w+", DOCKERFILE) == [
        "FLEX_TEMPLATE_PYTHON_PY_FILE"
    ]
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in image.stage("")
    assert DOCKERFILE.rstrip().endswith('ENTRYPOINT ["/template/start_worker.sh"]')
    assert (DEPLOY / "start_worker.sh").read_text().count("/opt/apache/beam/boot") == 1


def test_lock_is_of_the_requirements():
    """What the guide to contributing says to run after a change was run."""
    text = LOCK.read_text("utf-8")
    assert "uv pip compile requirements.txt --universal" in text
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and line[0] != "#"]
    locked = pins()
    for requirement in wanted:
        (pin,) = requirement.specifier
        assert locked[normal(requirement.name)] == {pin.version}
    direct = re.findall(
        r"^([\w.-]+)==\S+(?:(?!^\S).*\n)*? +#(?: via|  ) +-r requirements\.txt$",
        text,
        re.MULTILINE,
    )
    assert sorted(direct) == sorted(normal(r.name) for r in wanted)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", NEWEST_PYTHON])
def test_lock_is_complete(tmp_path, python):
    """Resolved for a version of Python, nothing is missing, from the hashes alone."""
    command = (
        *(tool("uv"), "pip", "install", "--dry-run", "--require-hashes", "--no-config"),
        *("--python-version", python, "--python-platform", "x86_64-manylinux_2_36"),
        *("--no-build-isolation", "--target", tmp_path, "--requirement"),
    )
    done = run(*command, LOCK)
    assert done.returncode == 0, done.stdout
    less = tmp_path / "less.lock"
    less.write_text(
        re.sub(r"^zipp==(?:.*\n)+?(?=\S)", "", LOCK.read_text(), flags=re.M)
    )
    done = run(*command, less)
    assert done.returncode != 0
    assert "no trusted hash was provided for: `zipp`" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "by_pip", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["uv", "pip"]
)
def test_commands_of_the_image_work_without_root(by_pip):
    """Each command by itself, in a fresh environment, from hashes alone."""
    for command in commands("build")[1:]:
        if "pip install" in command:
            installs = re.findall(r"pip install .*?(?= &&|$)", command)
            assert all("--require-hashes" in each for each in installs)
        elif "pip" in command:
            assert "--no-index" in command
    folder = image.environment(by_pip=by_pip)
    python = folder / "venv" / "bin" / "python"
    assert python.lstat().st_uid == (image.USER if os.geteuid() == 0 else os.geteuid())
    (wheel,) = (folder / "wheels").iterdir()
    sources = {name for s in ("build", "") for names, _ in copied(s) for name in names}
    assert "deploy/templates/main.py" in sources
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {name.split("/")[0] for name in sources} & {*ignored}
    _, install = commands("")
    assert install == (
        "pip install --no-cache-dir --no-index --no-deps /opt/gristmill/wheels/*.whl "
        "&& pip check"
    )
    site = folder / "site"
    done = image.run_as_user(
        *(str(python), "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"),
        *("--target", str(site), str(wheel)),
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout
    parts = (site / "gristmill/dataset/arrayrecord").glob("*.abi3.so")
    assert len(list(parts)) == CAN_COMPILE
    for package, inside in setup_arguments()["package_dir"].items():
        installed = site / package.replace(".", "/")
        for module in (ROOT / inside).rglob("*.py"):
            assert (installed / module.relative_to(ROOT / inside)).exists()


BOOT = '#!/bin/sh\necho "boot $(id -un) $*"; touch "$STAGED/staged/file"\n'


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("place", "mode", "user"),
    [
        ("--semi_persist_dir=HERE", 0o755, "nobody"),
        ("--semi_persist_dir HERE", 0o755, "nobody"),
        ("--semi_persist_dir=HERE", 0o700, "root"),
    ],
)
def test_a_worker_does_not_run_as_root(tmp_path, place, mode, user):
    """Beam's boot finds a directory of root, as Dataflow mounts it."""
    (tmp_path / "boot").write_text(BOOT)
    (tmp_path / "boot").chmod(0o755)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mounted.chmod(mode)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    given = place.replace("HERE", str(mounted))
    done = run(
        *(DEPLOY / "start_worker.sh", "--id=1", *given.split()),
        env={
            "BEAM_BOOT": f"{tmp_path}/boot",
            "GRISTMILL_USER": "nobody",
            "STAGED": str(mounted),
        },
    )
    assert done.returncode == 0, done.stdout
    assert (mounted / "staged" / "file").exists()
    assert f"boot {user} --id=1 {given}" in done.stdout
    assert ("runs as root" in done.stdout) == (user == "root")


def test_build_resolves_its_bases_to_digests(docker):
    """The build, as Cloud Build runs it."""
    config = yaml.safe_load((DEPLOY / "cloudbuild.yaml").read_text())
    (step,) = config["steps"]
    lines = "\n".join(step["env"])
    for name, value in {**config["substitutions"], "_IMAGE": "images/it:7"}.items():
        lines = lines.replace(f"${{{name}}}", value)
    assert "${" not in lines
    env = dict(line.split("=", 1) for line in lines.splitlines())
    done = run(step["entrypoint"], *step["args"], env={**docker, **env})
    assert done.returncode == 0, done.stdout
    calls = pathlib.Path(docker["DOCKER_LOG"]).read_text().splitlines()
    (line,) = [call for call in calls if call.startswith("docker build")]
    assert calls[-1] == "docker push images/it:7"
    assert f"--label gristmill.sources={sources_digest()} " in line
    assert "--file deploy/Dockerfile" in line
    assert "--build-arg IMAGE=images/it:7 --tag images/it:7 ." in line
    for name, default in arguments().items():
        if name.endswith("_IMAGE"):
            tagged = default.replace("${PYTHON}", "3.11")
            assert f"docker pull --quiet --platform linux/amd64 {tagged}" in calls
            digest = re.search(rf"--build-arg {name}=(\S+@sha256:\S+) ", line)
            assert digest, name
            assert f"--label base.{name.lower()}={digest[1]} " in line
    assert "apache/beam_python3.11_sdk@sha256:" in line
