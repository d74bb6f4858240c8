"""Makes the pictures of docs/prepare/view.md: pages of `gristmill view`.

    python docs/screenshots.py [NAME ...]

The datasets are made here of this project's own text: paragraphs of its documents, and
functions of its code. It needs Chromium, and what `pip install -e '.[dev]'` installs.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.example import encode_example
from gristmill.dataset.formats.tfrecord_frames import encode_frame

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FOLDER = ROOT / "docs" / "prepare"
_LAPTOP = (1280, 860)
_COLOURS = 256


class Shot(NamedTuple):
    """A picture.

    Attributes:
        name: Of its file, without `view_`.
        dataset: Which of the datasets it shows.
        place: Where in the page.
        size: Of the window, in pixels.
        scheme: `light` or `dark`.
    """

    name: str
    dataset: str
    place: str
    size: tuple[int, int] = _LAPTOP
    scheme: str = "light"


SHOTS = (
    Shot("dataset", "code", "#/dataset", size=(1280, 1000)),
    Shot("step", "mixture", "#/step/40", scheme="dark"),
    Shot("row", "chat", "#/record/0"),
)

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['tool_calls'] %}{% for call in message['tool_calls'] %}"
    "<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "{% else %}{{ message['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ENDS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


def paragraphs() -> list[str]:
    """Returns the paragraphs of the documents."""
    files = sorted((ROOT / "docs").rglob("*.md"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    parts = [part.strip() for text in texts for part in text.split("\n\n")]
    return [part for part in parts if len(part) > 60 and not part.startswith("|")]


def functions() -> list[str]:
    """Returns the functions and classes of the code."""
    found = []
    for folder in ("dataset", "loader", "transforms", "pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found += [
                ast.get_source_segment(text, node) or ""
                for node in ast.parse(text).body
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
            ]
    return found


def run(*arguments: str) -> None:
    """Runs a gristmill command."""
    command = [sys.executable, "-m", "gristmill", *arguments, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_inputs(folder: pathlib.Path, texts: Sequence[str], files: int) -> str:
    """Writes TFRecord files of texts; returns their pattern."""
    folder.mkdir()
    for number in range(files):
        part = texts[number * len(texts) // files : (number + 1) * len(texts) // files]
        frames = [
            encode_frame(encode_example({"text": text, "words": len(text.split())}))
            for text in part
        ]
        name = f"{folder.name}.tfrecord-{number:05d}-of-{files:05d}"
        (folder / name).write_bytes(b"".join(frames))
    return str(folder / "*.tfrecord-*")


def train_tokenizer(path: pathlib.Path, texts: Sequence[str]) -> None:
    """Writes a tokenizer of bytes and pairs, trained on these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=list(_ENDS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.save(str(path))


def conversations() -> list[dict[str, Any]]:
    """Returns conversations in which a tool is called."""
    found = []
    for number, city in enumerate(("Bern", "Graz", "Lyon", "Ulm", "Wels", "Zug")):
        call = {"name": "get_weather", "arguments": {"city_name": city}}
        result = json.dumps({"temperature_celsius": 17 + number})
        said = [
            {"role": "user", "content": f"How warm is it in {city}?"},
            {"role": "assistant", "tool_calls": [{"function": call}]},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": f"In {city}, it is {17 + number} °C."},
        ]
        found.append({"messages": said})
    return found


def make_datasets(folder: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Makes the datasets; returns what `gristmill view` is given for each."""
    texts, code = paragraphs(), functions()
    inputs = write_inputs(folder / "text-in", texts, 6)
    run("convert", inputs, "text", "--num-shards=2", "--group-size=8")
    inputs_code = write_inputs(folder / "code-in", code, 4)
    run("convert", inputs_code, "code", "--num-shards=24", "--group-size=4")
    train_tokenizer(folder / "tokenizer.json", [*texts, *code])
    lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in conversations()]
    (folder / "chat.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "chat.jinja").write_text(_TEMPLATE, encoding="utf-8")
    tokens = ("--tokenizer", "tokenizer.json")
    template = ("--template=chat.jinja", "--length=512")
    run("pack", "--chat", "chat.jsonl", "chat", *tokens, *template)
    mixture = ("text=text", "code=code", "--weights=text=0.7,code=0.3", "--epochs=2")
    return {
        "code": ("code", "--batch-size=32"),
        "mixture": (*mixture, "--batch-size=32", "--steps=40"),
        "chat": ("chat", *tokens),
    }


def save(data: bytes, path: pathlib.Path) -> None:
    """Writes a picture with few colours: a fifth of the size."""
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    few = image.quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def main(names: Sequence[str]) -> None:
    """Makes the pictures of these names, or all."""
    from tests.commands.browser import Watched, chromium

    shots = [shot for shot in SHOTS if not names or shot.name in names]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        chromium() as browser,
    ):
        datasets = make_datasets(pathlib.Path("."))
        for shot in shots:
            width, height = shot.size
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=shot.scheme,
            )
            path = pathlib.Path(f"{shot.name}.html").resolve()
            run("view", *datasets[shot.dataset], "--html", str(path))
            watched = Watched(context.new_page(), path.as_uri())
            watched.go(shot.place)
            data = watched.page.screenshot()
            assert not watched.faults, watched.faults
            context.close()
            save(data, FOLDER / f"view_{shot.name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
