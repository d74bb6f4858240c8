"""deploy/: linted, of one version of Beam, and run as far as one machine can."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from gristmill.pipelines.dataflow import worker_disk
from gristmill.pipelines.options.definitions import PIPELINES, template_options
from gristmill.pipelines.options.generated_files import metadata
from tests.support.dataflow_server import DataflowServer
from tests.support.distributions import CAN_COMPILE, setup_arguments
from tests.support.gcs_server import GcsServer
from tests.test_docs import blocks_of

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
DOCUMENTS = sorted(DEPLOY.glob("*.md"))
IMAGES = "us-central1-docker.pkg.dev/my-project/gristmill"


def tool(name: str) -> str:
    # Beside this interpreter too: an environment need not be activated.
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed: it is part of the development extra")
    return found


def run(
    *command: str | pathlib.Path, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def test_dockerfile_is_clean():
    done = run(tool("hadolint"), DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_scripts_are_clean():
    assert len(SCRIPTS) == 5
    done = run(tool("shellcheck"), "--external-sources", *SCRIPTS)
    assert done.returncode == 0, done.stdout
    for script in SCRIPTS:
        sourced = script.name == "launch.sh"
        assert bool(script.stat().st_mode & stat.S_IXUSR) != sourced


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_are_clean(document, tmp_path):
    blocks = [b for b in blocks_of(document.read_text()) if b.language]
    for block in blocks:
        assert block.language == "bash"
        # They need a project of Google Cloud: nothing here runs them.
        assert block.skipped
        script = tmp_path / "block.sh"
        script.write_text(f"#!/usr/bin/env bash\n{block.text}\n")
        done = run(tool("shellcheck"), "--exclude=SC2154", script)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (document.parent / link).exists(), link


def test_beam_is_of_one_version_everywhere():
    (image,) = re.findall(r"^FROM apache/beam_python3.11_sdk:(\S+)", DOCKERFILE, re.M)
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    (pin,) = [Requirement(r) for r in lines if r.startswith("apache-beam")]
    extra = map(Requirement, setup_arguments()["extras_require"]["beam"])
    (wanted,) = [required for required in extra if required.name == "apache-beam"]
    assert str(pin.specifier) == f"=={image}"
    least = next(s.version for s in wanted.specifier if s.operator == ">=")
    assert Version(image).release[:2] == Version(least).release[:2]
    assert image in (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"python:?(3\.\d+)", DOCKERFILE) == ["3.11"] * 3


def test_nothing_is_installed_at_start():
    assert re.findall(r"FLEX_TEMPLATE_\w+", DOCKERFILE) == [
        "FLEX_TEMPLATE_PYTHON_PY_FILE"
    ]
    assert DOCKERFILE.rstrip().endswith('ENTRYPOINT ["/opt/apache/beam/boot"]')


def copied() -> Iterator[tuple[list[str], str]]:
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M):
        *sources, target = line.split()
        yield sources, target


def test_image_holds_the_package_and_the_entry_points():
    sources = {name for names, _ in copied() for name in names}
    folders = set(setup_arguments()["package_dir"].values())
    beside = {"setup.py", "pyproject.toml", "README.md", "requirements.txt"}
    assert folders | beside | {"deploy/templates/*.py"} <= sources
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name in sources:
        assert list(ROOT.glob(name)), name
        assert name.split("/")[0] not in ignored
    for pipeline in PIPELINES:
        assert (DEPLOY / "templates" / f"{pipeline}.py").exists()


@pytest.mark.slow
def test_commands_of_the_image_install_the_package(tmp_path):
    """Builds and installs the package as the image does, without Docker.

    The installation of requirements.txt is run by the test of submissions.
    """
    build, first, second = re.findall(r"^RUN (.+)$", DOCKERFILE, re.M)
    assert first == "pip install --no-cache-dir --requirement requirements.txt"
    for names, target in copied():
        if target.startswith("/source"):
            folder = tmp_path / target.strip("/")
            for name in names:
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.so")
                    shutil.copytree(ROOT / name, folder, ignore=ignored)
                else:
                    folder.mkdir(exist_ok=True)
                    shutil.copy(ROOT / name, folder)
    install = second.removesuffix(" && pip check")
    for command in (build, f"{install} --target /site"):
        here = re.sub(r" /(\w)", rf" {tmp_path}/\1", command)
        done = run("bash", "-c", f"{here} --quiet")
        assert done.returncode == 0, done.stdout
    parts = (tmp_path / "site/gristmill/dataset/arrayrecord").glob("*.abi3.so")
    assert len(list(parts)) == CAN_COMPILE
    for package, folder in setup_arguments()["package_dir"].items():
        installed = tmp_path / "site" / package.replace(".", "/")
        for module in (ROOT / folder).rglob("*.py"):
            assert (installed / module.relative_to(ROOT / folder)).exists()


# A stand-in for docker, which says what it was asked for.
DOCKER = '#!/usr/bin/env bash\necho "docker $*" >> "$DOCKER_LOG"\n'


@pytest.fixture
def docker(tmp_path: pathlib.Path) -> dict[str, str]:
    """Variables that put the stand-in first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    log = tmp_path / "docker.log"
    return {"PATH": f"{folder}:{os.environ['PATH']}", "DOCKER_LOG": str(log)}


def images_built(docker: dict[str, str]) -> dict[str, str]:
    """Returns the argument PIPELINE of every image that was built and pushed."""
    lines = pathlib.Path(docker["DOCKER_LOG"]).read_text().splitlines()
    built = {}
    for line in lines:
        if match := re.search(
            r"build .*PIPELINE=(\w+) .*IMAGE=(\S+) --tag (\S+) ", line
        ):
            assert "--file deploy/Dockerfile" in line
            assert match[2] == match[3]
            built[match[3]] = match[1]
    assert [line.split()[-1] for line in lines if " push " in line] == list(built)
    return built


def test_cloud_build_makes_every_image(docker):
    config = yaml.safe_load((DEPLOY / "cloudbuild.yaml").read_text())
    (step,) = config["steps"]
    given = {**config["substitutions"], "_IMAGES": IMAGES, "_TAG": "7"}
    script = step["args"][-1]
    for name, value in given.items():
        script = script.replace(f"${{{name}}}", value)
    # What is left of single dollars would be a substitution that is not given.
    assert not re.search(r"(?<!\$)\$(?!\$)", script)
    command = (step["entrypoint"], *step["args"][:-1], script.replace("$$", "$"))
    done = run(*command, env=docker)
    assert done.returncode == 0, done.stdout
    assert images_built(docker) == {
        f"{IMAGES}/gristmill-{pipeline}:7": pipeline for pipeline in PIPELINES
    }


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that lead gcloud to a Storage and a Dataflow on loopback."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not on this machine")
    with GcsServer("my-bucket") as storage, DataflowServer() as service:
        services.update(storage=storage, dataflow=service)
        yield {
            "CLOUDSDK_CONFIG": str(tmp_path_factory.mktemp("gcloud")),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{storage.url}/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_DATAFLOW": f"{service.url}/",
            "PROJECT": "my-project",
            "REGION": "us-central1",
            "BUCKET": "my-bucket",
        }


services: dict = {}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_gcloud_takes_the_metadata(gcloud, pipeline):
    done = run(
        *("gcloud", "dataflow", "flex-template", "build", "gs://my-bucket/x.json"),
        *("--image", f"{IMAGES}/gristmill-{pipeline}:1", "--sdk-language", "PYTHON"),
        *("--metadata-file", DEPLOY / "templates" / f"{pipeline}.json"),
        "--print-only",
        env=gcloud,
    )
    assert done.returncode == 0, done.stdout
    printed = yaml.safe_load(done.stdout)
    template = json.loads(printed) if isinstance(printed, str) else printed
    names = [parameter["name"] for parameter in template["metadata"]["parameters"]]
    assert names == [option.name for option in template_options(pipeline)]


def test_build_makes_images_and_templates(gcloud, docker):
    done = run(
        *("deploy/build.sh", "convert", "verify"),
        env={**gcloud, **docker, "LOCAL": "1", "TAG": "7"},
    )
    assert done.returncode == 0, done.stdout
    assert images_built(docker) == {
        f"{IMAGES}/gristmill-{pipeline}:7": pipeline
        for pipeline in ("convert", "verify")
    }
    written = services["storage"].objects.buckets["my-bucket"]
    for pipeline in ("convert", "verify"):
        data = written[f"templates/gristmill-{pipeline}.json"].data
        template = json.loads(data)
        assert template["image"] == f"{IMAGES}/gristmill-{pipeline}:7"
        assert template["sdkInfo"] == {"language": "PYTHON"}
        expected = metadata(pipeline)
        found = template["metadata"]
        assert (found["name"], found["description"]) == (
            expected["name"],
            expected["description"],
        )
        assert found["parameters"] == expected["parameters"]


def test_build_names_what_is_missing(gcloud):
    assert (
        "no such template: nothing"
        in run("deploy/build.sh", "nothing", env=gcloud).stdout
    )
    done = run("deploy/build.sh", env={"PROJECT": "", "REGION": "", "BUCKET": ""})
    assert done.returncode != 0
    assert "PROJECT=my-project" in done.stdout


@pytest.mark.parametrize(
    ("script", "arguments", "parameters"),
    [
        (
            "launch_convert.sh",
            ("gs://a/1,gs://a/2", "gs://b/c", "num_shards=8", "overwrite=true"),
            {
                "input": "gs://a/1,gs://a/2",
                "output": "gs://b/c",
                "num_shards": "8",
                "overwrite": "true",
            },
        ),
        (
            "launch_verify.sh",
            ("gs://b/c", "report=gs://b/r.json"),
            {"dataset": "gs://b/c", "report": "gs://b/r.json"},
        ),
        (
            "launch_index.sh",
            ("gs://b/c/*.array_record", "split=train"),
            {"files": "gs://b/c/*.array_record", "split": "train"},
        ),
    ],
)
def test_launch_asks_for_a_job_with_parameters(gcloud, script, arguments, parameters):
    service = services["dataflow"]
    service.launches.clear()
    pipeline = script.removeprefix("launch_").removesuffix(".sh")
    done = run(
        *(DEPLOY / script, *arguments),
        env={
            **gcloud,
            "SERVICE_ACCOUNT": "worker@my-project.iam.gserviceaccount.com",
            "SUBNETWORK": "regions/us-central1/subnetworks/mine",
            "PIPELINE_OPTIONS": "disk_size_gb=200,number_of_worker_harness_threads=1",
            "MAX_WORKERS": "7",
        },
    )
    assert done.returncode == 0, done.stdout
    (launch,) = service.launches
    asked = launch["launchParameter"]
    template = f"gs://my-bucket/templates/gristmill-{pipeline}.json"
    assert asked["containerSpecGcsPath"] == template
    assert asked["parameters"] == parameters
    known = {option.name for option in template_options(pipeline)}
    assert parameters.keys() <= known
    environment = asked["environment"]
    assert environment["machineType"] == worker_disk.MACHINE_TYPE
    assert environment["maxWorkers"] == 7
    assert environment["serviceAccountEmail"].startswith("worker@")
    assert environment["subnetwork"].endswith("/mine")
    assert environment["ipConfiguration"] == "WORKER_IP_PRIVATE"
    assert environment["additionalPipelineOptions"] == [
        "disk_size_gb=200",
        "number_of_worker_harness_threads=1",
    ]
    assert environment["tempLocation"].startswith("gs://my-bucket/gristmill-tmp")
    assert "has NOT finished" in done.stdout
    assert "committed" not in done.stdout


def test_launch_says_how_it_is_used(gcloud):
    done = run("deploy/launch_convert.sh", "gs://a/b", env=gcloud)
    assert done.returncode == 2
    assert "usage:" in done.stdout
    assert "INPUT OUTPUT" in done.stdout


def test_guide_has_the_numbers_of_the_code():
    text = " ".join((DEPLOY / "README.md").read_text(encoding="utf-8").split())
    assert f"gristmill sets **{worker_disk.HARNESS_THREADS}**" in text
    assert (
        f"`{worker_disk.MACHINE_TYPE}` (16 GB), {worker_disk.DISK_GB} GB of disk"
        in text
    )
    cores = worker_disk.cores_of(worker_disk.MACHINE_TYPE)
    room = worker_disk.DISK_GB - worker_disk.IMAGE_GB
    each = room / (cores * worker_disk.HARNESS_THREADS)
    assert f"shards may have {each} GB of input" in text
    assert f"+ {worker_disk.IMAGE_GB} GB of system and image" in text
    assert f"{round(96 * 2**30 / 1e9)} GB of disk for shards of 1 GiB" in text


# What others say: Dataflow, its launcher, and the operating system.
THEIRS = {
    "already active job named ...",
    "Timeout in polling result file",
    "Error syncing pod",
    "exec format error",
    "not enough quota",
    "no space left",
}


def test_guide_quotes_messages_that_there_are():
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    rows = text.partition("## When something fails")[2].splitlines()
    quoted = {
        message
        for row in rows
        for message in re.findall(r"`([^`]+)`", row.split("|")[1] if row else "")
    } - {"gristmill status"}
    assert quoted >= THEIRS
    source = " ".join(
        re.sub(r'"\s+f?"', "", path.read_text(encoding="utf-8"))
        for folder in ("pipelines", "transforms")
        for path in (ROOT / folder).rglob("*.py")
    )
    for message in quoted - THEIRS:
        parts = [part.strip() for part in message.split("...")]
        assert all(part in re.sub(r"\{[^{}]*\}", "...", source) for part in parts), (
            message
        )
