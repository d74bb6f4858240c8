"""Writes pages of docs/reference that follow from the code.

`python docs/make_reference.py` writes all of them; `tests/test_reference.py` fails
where one is not what the code says, or where the code has something that is on no page.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator

import click

from gristmill.loader.maxtext.settings import SETTINGS, Only
from gristmill.pipelines.commands.main import cli, find_command
from gristmill.pipelines.commands.messages import COMMON
from gristmill.transforms.beam import job_metrics

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("dataset", "loader", "package", "pipelines", "transforms")
_FOLDER = ROOT / "docs" / "reference"


def rows(head: str, lines: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    names = head.split(" | ")
    table = [names, ["---"] * len(names)]
    table += [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


# --- Commands.

_SEVERAL = "of several commands"


def command_line_page() -> str:
    """Returns the page of the command line, with the options that the code has."""
    parts = {f"options {_SEVERAL}": _shared_options()}
    parts |= {f"options of {name}": _command(name) for name in _names()}
    return _with_parts("cli.md", parts)


def _with_parts(page: str, parts: dict[str, str]) -> str:
    """Returns a page with parts between its marks, each by the name of its marks."""
    text = (_FOLDER / page).read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        after = rest.partition(end)[2]
        if not (found and after):
            raise ValueError(f"{page} has no place for the {name}")
        text = f"{before}{begin}\n{part}{end}{after}"
    return text


def _names() -> list[str]:
    return cli.list_commands(click.Context(cli))


def _found(name: str) -> click.Command:
    command = find_command(name)
    if command is None:
        raise KeyError(name)
    return command


def _own_options(name: str) -> list[list[str]]:
    """Returns the cells of a command's options, without those of all commands."""
    return [
        _cells(each)
        for each in _found(name).params
        if isinstance(each, click.Option) and each.name not in COMMON
    ]


def _shared() -> dict[str, list[str]]:
    """Returns the options that several commands have alike: their commands."""
    found: dict[str, list[str]] = {}
    for name in _names():
        for cells in _own_options(name):
            found.setdefault("\0".join(cells), []).append(name)
    return {cells: names for cells, names in found.items() if len(names) > 1}


def _command(name: str) -> str:
    """Returns how a command is used, and its options; those of others by name."""
    usage = ["gristmill", name, "[OPTIONS]"]
    for each in _found(name).params:
        if isinstance(each, click.Argument):
            word = each.metavar or str(each.name).upper()
            word += "..." if each.nargs == -1 and "..." not in word else ""
            usage.append(word if each.required else f"[{word}]")
    parts = [f"```text\n{' '.join(usage)}\n```"]
    shared = _shared()
    options = _own_options(name)
    own = [cells for cells in options if "\0".join(cells) not in shared]
    if own:
        parts.append(rows(_HEAD, own))
    others = [cells[0] for cells in options if cells not in own]
    if others:
        names = ", ".join(f"`{cell.strip('`').split()[0]}`" for cell in others)
        parts.append(f"[Shared with other commands](#{_ANCHOR}): {names}.")
    return "\n\n".join(parts) + "\n"


_HEAD = "option | default | effect"
_ANCHOR = "options-of-several-commands"


def _shared_options() -> str:
    cells = [[*key.split("\0"), ", ".join(names)] for key, names in _shared().items()]
    return rows(f"{_HEAD} | commands", sorted(cells)) + "\n"


def _cells(option: click.Option) -> list[str]:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return [
        f"`{names} {_value(option)}`".replace(" `", "`"),
        _default(option),
        option.help or "",
    ]


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    return option.make_metavar(click.Context(cli)).strip("[]")


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    # click marks options without a default, such as those that are required, by one.
    without = (None, getattr(click.core, "UNSET", None))
    shown = not option.is_flag and option.default not in without
    return f"`{option.default}`" if shown else ""


# --- The settings of MaxText.


def maxtext_page() -> str:
    """Returns the page of MaxText, with the settings that the code knows."""
    lines = [
        [
            ", ".join(f"`{name}`" for name in each.names),
            _honoured(each.records),
            _honoured(each.packed),
        ]
        for each in SETTINGS
    ]
    table = rows("settings | records | packed rows", lines)
    return _with_parts(_MAXTEXT, {"settings": f"{table}\n"})


_MAXTEXT = "../train/maxtext.md"


def _honoured(of: str | Only) -> str:
    if isinstance(of, str):
        return of
    return " or ".join(f"`{value}`" for value in of.values) + ", else refused"


# --- Metrics.

_ABOUT_JOBS = f"""\
# Metrics of jobs on Beam

gristmill's transforms count on any Beam runner, in the namespace
`{job_metrics.NAMESPACE}`. `result.metrics()` has the numbers; Dataflow shows them on
the page of a job, and exports them to Cloud Monitoring. A distribution has a count, a
sum, a minimum and a maximum. Workers also log a line each, at level INFO, when inputs
are listed, shards are planned, and the dataset is committed.

"""


def metrics_page() -> str:
    """Returns the page of the metrics of jobs on Beam."""
    jobs = [
        [f"`{name}`", kind, f"{text}."]
        for kind, metrics in (
            ("counter", job_metrics.COUNTERS),
            ("distribution", job_metrics.DISTRIBUTIONS),
        )
        for name, text in metrics.items()
    ]
    return _ABOUT_JOBS + rows("metric | kind | meaning", jobs) + "\n"


# --- Environment variables.

# Variable -> who reads it, and what it does.
VARIABLES = {
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": (
        "conversions on Dataflow",
        "Address of the Compute API, if it is not the usual one.",
    ),
    "GOOGLE_APPLICATION_CREDENTIALS": (
        "everything that uses `gs://`",
        "A key file. Without it, Google's libraries search their usual places.",
    ),
    "GRISTMILL_CACHE_DIR": (
        "the loader, `doctor`",
        "Directory for copies of shards in buckets, and for footers of plain "
        "ArrayRecord files. Without it, no shards are copied, and footers "
        "are in `gristmill-UID` below `TMPDIR`; set to nothing, neither is kept.",
    ),
    "GRISTMILL_GCS_DEADLINE_SECONDS": (
        "everything that uses `gs://` but the loader's reads of records",
        "Seconds of retries before a request is an error. Default: 120.",
    ),
    "GRISTMILL_GCS_TIMEOUT_SECONDS": (
        "everything that uses `gs://` but the loader's reads of records",
        "Seconds before a request without progress is repeated. Default: 30.",
    ),
    "GRISTMILL_IMAGE": (
        "the Dataflow templates",
        "Image of the workers. The launcher's image sets it.",
    ),
    "GRISTMILL_USER": (
        "the Dataflow templates",
        "User that the launcher runs as. The image sets it.",
    ),
    "NO_COLOR": ("all commands", "`1` turns colours off."),
    "OPENBLAS_NUM_THREADS": (
        "all commands, workers of a feed",
        "Threads of NumPy's linear algebra. gristmill needs none: without a value it "
        "sets 1.",
    ),
    "STORAGE_EMULATOR_HOST": (
        "everything that uses `gs://`",
        "Address of a server in place of Cloud Storage, such as "
        "`http://localhost:4443`; without a scheme it is `http`. No credentials are "
        "used then.",
    ),
    "TMPDIR": (
        "all commands",
        "Directory for temporary files: shards on their way to a bucket, documents of "
        "packed rows while they are compared.",
    ),
}
# Set for libraries, and not read.
SET_FOR_LIBRARIES = {
    "CUDA_VISIBLE_DEVICES": "A feed's workers use no GPU.",
    "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": (
        "Google's library would ask for the bucket's metadata at each missing object. "
        "A value that is already set is kept."
    ),
    "JAX_PLATFORMS": "A feed's workers use no accelerator: `cpu` there.",
    "TOKENIZERS_PARALLELISM": (
        "Workers are processes, as many as there are cores: `false`. A value that is "
        "already set is kept."
    ),
}
# Types of parameters are none, and cli.md lists the options of all commands.
_NONE = "GCS_(?:READ|WRITE)|GRISTMILL_(?:JSON|LOG_FILE|QUIET|VERBOSE)$"
_LIKE_A_VARIABLE = re.compile(rf"(?!{_NONE})(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|TMPDIR)")


def variables_in(source: str) -> Iterator[str]:
    """Yields texts of a module of Python that may be variables of the environment.

    Only modules that use the environment have any.
    """
    if "environ" not in source and "getenv" not in source and "envvar" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _LIKE_A_VARIABLE.fullmatch(text):
            yield text


def environment_page() -> str:
    """Returns the page of the variables of the environment."""
    return (
        "# Environment variables\n\n"
        "Every option of a command is also an environment variable, such as "
        "`GRISTMILL_CONVERT_GROUP_SIZE` for `--group-size` of\n`convert`: "
        "[the command line](cli.md) lists the options. This page lists the rest.\n\n"
        + rows(
            "variable | read by | effect",
            ([f"`{name}`", *told] for name, told in sorted(VARIABLES.items())),
        )
        + "\n\n## Set for libraries\n\n"
        "gristmill sets these in its own processes, for libraries that read them.\n\n"
        + rows(
            "variable | why",
            ([f"`{name}`", why] for name, why in sorted(SET_FOR_LIBRARIES.items())),
        )
        + "\n"
    )


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": command_line_page,
    _MAXTEXT: maxtext_page,
    "environment.md": environment_page,
    "metrics.md": metrics_page,
}


def main() -> None:
    """Writes the pages."""
    for name, page in PAGES.items():
        (_FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
