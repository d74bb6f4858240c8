"""`gristmill demo`: TFRecords are made, converted and read back."""

from __future__ import annotations

import click

from gristmill.pipelines.commands.convert import run_conversion
from gristmill.pipelines.commands.errors import EPILOG, errors_reported
from gristmill.pipelines.options.definitions import ConvertOptions


@click.command(name="demo", epilog=EPILOG)
@click.argument("directory", required=False)
@errors_reported
def command(*, directory: str | None) -> None:
    """Make TFRecord files, convert them, and show a few records.

    Writes to DIRECTORY, by default a new temporary one.
    """
    import tempfile

    from gristmill.dataset.shard_reader import first_records
    from gristmill.pipelines.commands.demo_records import write_demo_tfrecords
    from gristmill.pipelines.results.record import record_text

    directory = directory or tempfile.mkdtemp(prefix="gristmill-demo-")
    pattern = write_demo_tfrecords(f"{directory}/tfrecords")
    output = f"{directory}/demo"
    click.echo(f"$ gristmill convert '{pattern}' {output} --num-shards 8")
    options = ConvertOptions(input=(pattern,), output=output, num_shards=8)
    click.echo(run_conversion(options).text())
    click.echo(f"\n$ gristmill head {output}")
    for number, record in enumerate(first_records(output, "train", 3)):
        click.echo(record_text(number, record))
