"""Records that leave a dataset here, by the functions that Beam runs."""

from gristmill import loader
from gristmill.dataset.base.columns import Gathered
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import begin_removal, commit_removal


def remove(folder, numbers, *, erase=False):
    """Takes records out of the dataset that `convert` made in a folder; returns it.

    Args:
        folder: The folder.
        numbers: Numbers of the records.
        erase: Whether the state before is deleted.
    """
    output = str(folder / "out")
    remove_from(output, numbers, erase=erase)
    return output


def remove_from(output, numbers, *, erase=False):
    """Does the same to any dataset."""
    newest = loader.open(output).facts.edition
    begun = begin_removal(output, sorted(numbers), edition=newest, erase=erase)
    cuts = Gathered.of([begun])
    for task in begun.tasks():
        cut_shard(task).gather(cuts)
    commit_removal(cuts)
