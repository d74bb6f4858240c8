"""Checks before a job is submitted to Dataflow, where it would fail after minutes.

Each check in `CHECKS` takes seconds at most. They use the account that submits the job;
in the launcher of a template that is the account of the workers.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core.exceptions import NotFound

from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    some_of,
)
from gristmill.dataset.commit.ownership import check_not_matched
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest
from gristmill.dataset.storage.gcs import storage_with
from gristmill.dataset.storage.gcs_connection import GcsConnection, emulator_url
from gristmill.dataset.storage.paths import (
    compile_pattern,
    has_magic,
    listing_of,
    path_texts,
    split_path,
)
from gristmill.pipelines.dataflow.clients import (
    READ,
    STAGE,
    WRITE,
    bucket_roles,
    connect,
    cure_of,
    describe,
    get_json,
)
from gristmill.pipelines.dataflow.defaults import ARM_FAMILIES, check_machine, copies_of
from gristmill.pipelines.dataflow.worker_code import has_image, sends_code
from gristmill.pipelines.options.conversion_jobs import conversion_of, plan_of
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    LaunchOptions,
    Options,
    PackingOptions,
    VerifyOptions,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.tokens.load_tokenizer import is_function

_SECONDS = 10.0
_MOST_FILES = 10_000
_COMPUTE = "https://compute.googleapis.com/compute/v1/"
# gcloud's variable.
_OTHER_COMPUTE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
_SUBNETWORK = re.compile(
    r"(?:https://[^/]+/compute/v1/)?(?:projects/(?P<project>[^/]+)/)?"
    r"regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)"
)
# Faults that only the service or the job itself can find.
_LATER = "the workers' account, quotas, the image, and what is in the input files"


class Use(NamedTuple):
    """A path that a job uses.

    Attributes:
        what: Role of the path, for messages.
        path: A gs:// path or pattern.
        permissions: Permissions that the job needs in its bucket.
    """

    what: str
    path: str
    permissions: frozenset[str]


class AskedJob:
    """A requested job.

    Args:
        options: Options of the pipeline.
        launch: Options of the launch.
        beam_options: Options of Beam, with all defaults.

    Attributes:
        options: Options of the pipeline.
        launch: Options of the launch.
        beam: All options of Beam.
        region: The region of the workers.
        uses: The paths that the job reads and writes.
        notes: Remarks for the user.
        checked: Names of the checks done.
        not_checked: Names of what was not checked.
    """

    def __init__(
        self, options: Options, launch: LaunchOptions, beam_options: PipelineOptions
    ):
        self.options, self.launch = options, launch
        self.notes: list[str] = []
        self.checked = ["options, and how the workers get the package"]
        self.not_checked = [_LATER]
        self.beam: Any = SimpleNamespace(**beam_options.get_all_options())
        beam = self.beam
        zone = (beam.worker_zone or beam.zone or "").rpartition("-")[0]
        self.region: str = beam.worker_region or zone or beam.region
        temporary = dict.fromkeys(
            [beam.temp_location, beam.staging_location, beam.template_location]
        )
        uses = [Use("temporary files", path, STAGE) for path in temporary if path]
        if isinstance(options, ConvertOptions):
            inputs = path_texts(options.input, "input")
            uses += [Use("input", path, READ) for path in inputs]
            uses += [Use("output", options.output, WRITE)]
            file = options.tokenizer if isinstance(options, PackingOptions) else None
            if file is not None and not is_function(file):
                uses.append(Use("tokenizer", file, READ))
        elif isinstance(options, VerifyOptions):
            uses += [Use("dataset", options.dataset, READ)]
            if options.report is not None:
                uses += [Use("report", options.report, WRITE)]
        else:
            uses += [Use("files", path, WRITE) for path in options.files]
        self.uses = uses

    @functools.cached_property
    def connection(self) -> GcsConnection:
        """A connection to Cloud Storage."""
        return connect()


def check_options(asked: AskedJob) -> None:
    """Raises InputError for options with which no worker could begin."""
    for use in asked.uses:
        if not re.match("gs://[^/]", use.path):
            raise InputError(
                f"Dataflow workers cannot access the {use.what}",
                where=use.path,
                expected="a path in a bucket, gs://BUCKET/NAME",
                cure="copy local files to a bucket with gcloud storage cp",
            )
    for path in (asked.beam.setup_file, asked.beam.requirements_file):
        if path and not pathlib.Path(path).exists():
            raise InputError("no such file", where=path, cure="check the path")
    _check_workers_begin(asked)


def _check_workers_begin(asked: AskedJob) -> None:
    """Raises InputError for options that contradict one another."""
    beam = asked.beam
    own_image, key, named = has_image(beam), beam.dataflow_kms_key, _own_code(asked)
    installs = beam.use_public_ips or asked.launch.install_on_workers
    # Beam's image does not hold what the package requires.
    if not (own_image or beam.prebuild_sdk_container_engine or installs):
        raise InputError(
            "the workers could not install gristmill",
            expected="an image that holds it, or a package index that the workers can "
            "reach",
            got="Beam's own image, and workers without public addresses",
            cure="give --sdk_container_image=IMAGE, which deploy/build.sh builds; or "
            "--use_public_ips; or --install-on-workers, if the network of the workers "
            "reaches a package index, such as through Cloud NAT",
        )
    if named and not (own_image or sends_code(beam)):
        raise InputError(
            f"the workers do not have the module of {named}",
            expected="a package or an image that contains it",
            cure="give --sdk_container_image of an image on top of gristmill's, or "
            "--setup_file or --extra_package of a package that contains it",
        )
    if beam.streaming:
        raise InputError(
            "a job that ends is no streaming job", got="--streaming", cure="drop it"
        )
    if own_image and (beam.machine_type or "").partition("-")[0] in ARM_FAMILIES:
        raise InputError(
            "the image is for x86-64, and the machines are Arm",
            got=beam.machine_type,
            cure="give another --worker_machine_type, such as e2-standard-4",
        )
    if key and f"/locations/{asked.region}/" not in key:
        raise InputError(
            "the key is not in the workers' region",
            got=key,
            cure=f"give a key of {asked.region}, or change --region",
        )


def _own_code(asked: AskedJob) -> str | None:
    """Returns the option that names a function of the user's own, if any."""
    options = asked.options
    if isinstance(options, ConvertOptions) and options.map is not None:
        return "--map"
    if isinstance(options, PackingOptions) and is_function(options.tokenizer or ""):
        return "--tokenizer"
    return None


def check_buckets(asked: AskedJob) -> Iterator[str]:
    """Checks that buckets exist, are accessible, and are near the workers."""
    region = asked.region
    places: dict[str, list[Use]] = {}
    for use in asked.uses:
        places.setdefault(split_path(use.path)[0], []).append(use)
    for name, here in places.items():
        wanted = frozenset().union(*(use.permissions for use in here))
        what = " and ".join(dict.fromkeys(use.what for use in here))
        bucket = describe(asked.connection, name, wanted, what)
        if missing := sorted(wanted - bucket.permissions):
            raise InputError(
                f"this account may not use the bucket of the {what}",
                where=f"gs://{name}",
                expected=", ".join(sorted(wanted)),
                got="missing: " + ", ".join(missing),
                cure=f"grant {bucket_roles(missing, wanted=wanted)} on the bucket to "
                "it, and to the workers' service account; deploy/iam.md has commands",
            )
        if not bucket.location:
            yield (
                f"the location of gs://{name} was not compared with {region}: this "
                "account may not see it. storage.buckets.get is in "
                "roles/storage.legacyBucketReader"
            )
        elif not bucket.near(region):
            if not asked.launch.cross_region:
                raise InputError(
                    f"the bucket of the {what} is not in the workers' region",
                    where=f"gs://{name}, {bucket.location}",
                    expected=f"a location that contains {region}",
                    cure="change --region, or allow slower and charged traffic between "
                    "regions with --cross-region",
                )
            yield f"gs://{name} is in {bucket.location}, the workers in {region}"


def subnetwork_of(asked: AskedJob) -> tuple[str, str]:
    """Returns the project and the name of the workers' subnetwork."""
    given, region = asked.beam.subnetwork, asked.region
    if not given:
        # The subnetworks of an automatic network have its name.
        network = (asked.beam.network or "default").rpartition("/")[2]
        return asked.beam.project, network
    match = _SUBNETWORK.fullmatch(given)
    if match is None or match["region"] != region:
        raise InputError(
            "Dataflow would not find the subnetwork",
            expected=f"regions/{region}/subnetworks/NAME, for a Shared VPC after "
            "https://www.googleapis.com/compute/v1/projects/HOST_PROJECT/",
            got=given,
            cure="correct --subnetwork, or change --region",
        )
    return match["project"] or asked.beam.project, match["name"]


def check_private_access(asked: AskedJob) -> Iterator[str]:
    """Checks that workers without public addresses can reach Google's services."""
    if asked.beam.use_public_ips:
        return
    (project, name), region = subnetwork_of(asked), asked.region
    where = f"subnetwork {name} in {region}, project {project}"
    service = os.environ.get(_OTHER_COMPUTE, _COMPUTE).rstrip("/")
    url = f"{service}/projects/{project}/regions/{region}/subnetworks/{name}"
    public = "or give --use_public_ips"
    try:
        found = get_json(url, anonymous=asked.beam.no_auth)
    except NotFound as e:
        raise InputError(
            "there is no subnetwork for the workers",
            where=where,
            expected="a network named default, or one that you name",
            cure="give --subnetwork=regions/REGION/subnetworks/NAME",
        ) from e
    except Exception as e:  # Google's clients raise anything.
        got = str(getattr(e, "cause", None) or e).splitlines()
        yield (
            f"Private Google Access was not checked in {where}: {''.join(got[:1])}. "
            "It takes compute.subnetworks.get: "
            f"{cure_of('compute.subnetworks.get')}, {public}"
        )
        return
    if not found.get("privateIpGoogleAccess"):
        raise InputError(
            "workers without public addresses would reach no service of Google",
            where=where,
            expected="a subnetwork with Private Google Access",
            got="one without",
            cure=f"gcloud compute networks subnets update {name} --project {project} "
            f"--region {region} --enable-private-ip-google-access; {public}",
        )


def list_input(path: str, *, ends: float) -> tuple[list[int], str, bool]:
    """Lists the first files that a path or pattern matches, until the time `ends`.

    Returns:
        Their sizes, a text about what was seen, and whether the list is complete.
    """
    storage = storage_with(os.getpid(), emulator_url(), _SECONDS, _SECONDS)
    bucket, name = split_path(path)
    # A plain name wins: objects may have `[` in their names.
    if not path.endswith("/") and (plain := storage.stat(path)):
        return [plain.size_bytes], path, True
    if has_magic(name):
        (prefix, deep), fits = listing_of(name), compile_pattern(name).fullmatch
    else:
        # As `match_inputs`, which skips markers and unfinished files.
        prefix, deep = f"{name.rstrip('/')}/".lstrip("/"), False
        fits = re.compile(r"(.*/)?[^./_][^/]*", re.DOTALL).fullmatch
    seen, sizes, example, whole = 0, [], "", True
    for info in storage.scan(f"gs://{bucket}", deep=deep, prefix=prefix):
        example = example or f", such as {info.path}"
        seen += 1
        if fits(split_path(info.path)[1]):
            sizes.append(info.size_bytes)
        if time.monotonic() > ends or len(sizes) >= _MOST_FILES:
            whole = False
            break
    said = f"{seen or 'no'} object{'s' if seen > 1 else ''} with the prefix"
    return sizes, f"{said} gs://{bucket}/{prefix}{example}", whole


def check_inputs(asked: AskedJob) -> Iterator[str]:
    """Checks that inputs exist, and that workers have disk and memory for their shards.

    It lists the inputs for some seconds.
    """
    ends, whole = time.monotonic() + _SECONDS, True
    sizes: list[int] = []
    for use in asked.uses:
        if use.what not in ("input", "files"):
            continue
        found, seen, all_seen = list_input(use.path, ends=ends)
        if not found and all_seen:
            raise InputError(
                "no input file matches",
                where=use.path,
                got=seen,
                cure="check the path; a directory stands for the files directly in it",
            )
        if not found:
            yield (
                f"whether a file matches {use.path} was not checked: none of the first "
                f"ones does, {seen}"
            )
        sizes, whole = sizes + found, whole and all_seen
    if isinstance(asked.options, ConvertOptions):
        plan, copies = plan_of(asked.options), copies_of(asked.options)
        yield from check_machine(
            *shards_of(sizes, plan, whole=whole, copies=copies), asked.beam
        )


def shards_of(
    sizes: Sequence[int], plan: PlanOptions, *, whole: bool, copies: int = 1
) -> tuple[int, int]:
    """Returns the number of a job's shards, and the stored input of the largest.

    Both are lower bounds if there are more files.

    Args:
        sizes: Sizes of input files.
        plan: The plan that cuts them.
        whole: Whether these are all files.
        copies: Copies of a shard's input on disk; each counts.
    """
    total, value = sum(sizes), plan.value or 1
    number, largest = len(sizes), max(sizes, default=0)
    if plan.kind == "num_shards":
        number, largest = value, -(-total // value)
    elif plan.kind == "shard_bytes":
        number, largest = -(-total // value), min(value, total) if whole else value
    return number, largest * copies


def check_output(asked: AskedJob) -> Iterator[str]:
    """Checks the place of the output, and that not all splits are committed already."""
    options = asked.options
    if isinstance(options, VerifyOptions):
        open_manifest(options.dataset)
    if not isinstance(options, ConvertOptions):
        return
    splits = [job.split for job in conversion_of(options).jobs]
    patterns = path_texts(options.input, "input")
    check_not_matched(options.output, patterns=patterns, files=(layout.DATASET_JSON,))
    try:
        manifest = read_manifest(options.output)
    except GristmillError as e:
        if options.overwrite:
            return
        raise InputError(
            "the output cannot be read",
            where=options.output,
            got=str(e),
            cure="repair it, or choose another output",
        ) from e
    committed = [s for s in splits if manifest and manifest.find(s) is not None]
    if committed and options.overwrite:
        yield (
            f"split {', '.join(committed)} stays until the new one is finished; "
            "meanwhile the bucket holds both"
        )
    elif committed and len(committed) == len(splits):
        raise InputError(
            "the output is committed already",
            where=f"{options.output}, split {some_of(committed)}",
            cure="see it with gristmill inspect, choose another output or --split, or "
            "replace it with --overwrite",
        )
    else:
        for split in committed:
            yield f"split {split} is committed already and will be kept"


CHECKS: dict[str, Callable[[AskedJob], Iterator[str]]] = {
    "buckets and this account's roles": check_buckets,
    "subnetwork": check_private_access,
    "inputs, and disk and memory of the workers": check_inputs,
    "output": check_output,
}


def preflight(asked: AskedJob) -> bool:
    """Runs all checks.

    Returns:
        Whether the job may be submitted: a dry run without credentials skips the checks
        that need them.
    """
    check_options(asked)
    try:
        _ = asked.connection
    except InputError as e:
        if not asked.beam.dry_run:
            raise
        asked.not_checked.insert(0, f"all else: {e.what}. To do: {e.cure}")
        return False
    of_another = asked.beam.impersonate_service_account
    if of_another:
        asked.not_checked.insert(0, "buckets: another account submits the job")
    for what, check in CHECKS.items():
        if not of_another or check is check_output:
            asked.notes += check(asked)
            asked.checked.append(what)
    return True
