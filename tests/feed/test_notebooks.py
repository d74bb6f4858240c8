"""Commands and feeds in a notebook, run by a real kernel."""

import re
import sys

import nbclient
import pytest
from nbformat.v4 import new_code_cell, new_notebook

CELLS = (
    "!{sys.executable} -m gristmill demo made && "
    "{sys.executable} -m gristmill verify made/demo",
    "from gristmill import loader\ndataset = loader.open('made/demo')\ndataset",
    "batches = loader.global_batches(dataset, batch_size=64, seed=1)\nbatches",
    "feed = batches.feed(host=(0, 1))\nbatch = next(feed)\nfeed",
    "feed.close()\nbatch[0]",
)


def text_of(cell):
    """Returns what a notebook shows of the text that a cell printed.

    A carriage return goes to the begin of the line, and what follows is written over
    it; codes of terminals are dropped.
    """
    printed = "".join(out.text for out in cell.outputs if out.output_type == "stream")
    lines = []
    for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown)
    return "\n".join(lines)


@pytest.mark.slow
def test_a_notebook(tmp_path, monkeypatch):
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    cells = [new_code_cell(source) for source in ("import sys", *CELLS)]
    client = nbclient.NotebookClient(
        new_notebook(cells=cells),
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable  # That of these tests.
    client.execute()
    lines = text_of(cells[1]).splitlines()
    # The bars stay, and nothing of them is left over in other lines.
    bars = [line for line in lines if re.search(r" elapsed, \S+ left$", line)]
    assert [line.split()[0] for line in bars] == ["converting", "verifying"]
    assert "100%  8/8 shards" in bars[1]
    assert "demo/train: 4,000 records in 8 shards, committed" in lines
    assert any(re.fullmatch(r"made/demo: whole; .* in [\d.]+ s", one) for one in lines)
    assert lines[-1] == "next: gristmill inspect made/demo"
    begins = ("<Dataset ", "<GlobalBatches of ", "<Feed of ", "b'")
    for cell, begin in zip(cells[2:], begins, strict=True):
        (output,) = cell.outputs
        assert output.data["text/plain"].startswith(begin)
