"""The table of runs: what is documented, done by the real MaxText.

Each run is a function of a `Lab`; what it says in an error is what is wrong.
"""

import json

from tests.with_maxtext import toy
from tests.with_maxtext.checks import (
    CHAT,
    CUT,
    STEPS,
    batches_of,
    check_falls,
    check_same,
    pieces,
    run,
)
from tests.with_maxtext.lab import NATIVE_SFT, OWN, tail


def resume_exactly(lab, name, **files):
    """Trains without an interruption and with one, after which it evaluates too."""
    settings = {"grain_train_files": lab.path("one"), **files}
    whole = lab.train(name, steps=STEPS, **settings)
    check_falls(whole.losses)
    other = f"{name}-cut"
    settings["enable_checkpointing"] = True
    begun = lab.train(other, steps=CUT, **settings)
    evaluation = {"eval_interval": 2, "eval_steps": 2, "grain_worker_count_eval": 0}
    evaluation["grain_eval_files"] = settings["grain_train_files"]
    ended = lab.train(other, steps=STEPS, **evaluation, **settings)
    check_same(begun.batches + ended.batches, whole.batches, "resumed")
    assert len(ended.evaluated) >= 2, "nothing was evaluated"
    # MaxText drops earlier metrics when it evaluates.
    for step, loss in {**begun.losses, **ended.losses}.items():
        assert loss == whole.losses[step], f"the loss of step {step} differs"
    assert STEPS - 1 in ended.losses


@run("records: train, resume exactly, evaluate")
def records(lab):
    resume_exactly(lab, "records", grain_worker_count=1)


@run("packed: train, resume exactly, evaluate")
def packed(lab):
    resume_exactly(lab, "packed", grain_train_files=lab.path("packed-one"))


@run("packed: 2 processes, then 1, with the same global batches")
def packed_on_other_hosts(lab):
    files = {"grain_train_files": lab.path("packed-one"), "enable_checkpointing": True}
    name = "packed-hosts"
    begun = lab.train(name, processes=2, per_device_batch_size=2, steps=CUT, **files)
    ended = lab.train(name, steps=STEPS, **files)
    whole = lab.iterate(
        "packed-whole",
        {"whole": {"grain_train_files": lab.path("packed-one")}},
        batches=STEPS,
    )
    check_same(begun.batches + ended.batches, batches_of(whole, "whole"), "2 -> 1")


@run("records: 2 processes, then 1, refused with what to do")
def records_on_other_hosts(lab):
    name = "records-hosts"
    saved = {"enable_checkpointing": True}
    lab.train(name, processes=2, per_device_batch_size=2, steps=CUT, **saved)
    ((code, log),) = lab.start(name, steps=STEPS, **saved)
    assert code, "1 process took over the states of 2"
    assert "expansion_factor_real_data" in log, tail(log)


@run("MaxText's own checkpoint: refused with what to do")
def own_checkpoint(lab):
    own = {"grain_train_files": f"{lab.path('one')}/one-train.array_record*"}
    saved = {"enable_checkpointing": True, **own}
    lab.train("own-cut", module=OWN, steps=CUT, **saved)
    ((code, log),) = lab.start("own-cut", steps=STEPS, **saved)
    assert code, "another order went on from the checkpoint"
    assert "continue by MaxText alone" in log, tail(log)


@run("SFT: train once")
def sft(lab):
    done = lab.train(
        "sft", trainer=NATIVE_SFT, grain_train_files=lab.path("chat"), **CHAT
    )
    check_falls(done.losses)


@run("records: mixtures, elastic, SFT, packing of all kinds, padding")
def features(lab):
    one, two = lab.path("one"), lab.path("two")
    mixture = lab.work / "mixture.json"
    weights = {"a": {"path": one, "weight": 0.7}, "b": {"path": two, "weight": 0.3}}
    mixture.write_text(json.dumps(weights))
    of_json = {"grain_train_mixture_config_path": mixture, "grain_train_files": None}
    chat = {"grain_train_files": lab.path("chat"), **CHAT}
    end = {"num_epoch": 1, "packing": False, "grain_train_files": lab.path("chat")}
    end |= {"train_data_columns": "['prompt']", "per_device_batch_size": 32}
    found = lab.iterate(
        "features",
        {
            "plain": {},
            "workers": {"grain_worker_count": 1},
            "string": {"grain_train_files": f"{one},0.7;{two},0.3"},
            "json": of_json,
            "elastic": {"grain_use_elastic_iterator": True, "packing": False},
            "chunks": {"use_truncation": False},
            "best_fit": {"grain_packing_type": "best_fit"},
            "concat": {"grain_packing_type": "concat_then_split"},
            "few_segments": {"max_segments_per_seq": 2},
            "sft": chat,
            "end": end,
            "padded": {**end, "generate_padding_batch_train": True},
        },
        batches=6,
    )
    for name in found:
        batches_of(found, name)
    for name in ("string", "json"):
        decode = _tokenizer(lab).decode
        texts = [decode(tokens) for tokens, _ in pieces(batches_of(found, name))]
        # Each begins with the number of its dataset's seed.
        seeds = {text.partition(".")[0] for text in texts}
        assert seeds == {"0", "2"}, f"{name}: documents of {seeds}"
    most = max(
        b["inputs_segmentation"].max() for b in batches_of(found, "few_segments")
    )
    assert most <= 2, f"{most} segments in a row"
    filled = [
        int((batch["inputs_segmentation"] > 0).any(axis=1).sum())
        for batch in batches_of(found, "padded")
    ]
    assert filled == [32, 32, 32, 4, 0, 0], f"rows of 100 records: {filled}"
    assert len(batches_of(found, "end")) == 4


@run("records: rows are those of the global batches")
def same_order(lab):
    from gristmill import loader

    plain = {"packing": False, "add_bos": False, "add_eos": False}
    found = lab.iterate(
        "order", {"rows": plain, "two": {**plain, "grain_worker_count": 2}}, batches=8
    )
    batches = loader.global_batches(
        loader.open(lab.path("one"), split="train"), batch_size=4, seed=0
    )
    decode = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})
    encode = _encoder(lab)
    for name in found:
        for step, batch in enumerate(batches_of(found, name)):
            texts = decode(batches.read(step))["text"]
            for row, text in enumerate(texts):
                held = batch["inputs_segmentation"][row] > 0
                got = batch["inputs"][row][held].tolist()
                expected = encode(text.decode())[: toy.LENGTH]
                assert got == expected, f"{name}: row {row} of step {step}"


@run("packed: mixtures, several workers, padding")
def packed_features(lab):
    one, two = lab.path("packed-one"), lab.path("packed-two")
    end = {"num_epoch": 1, "grain_train_files": one, "per_device_batch_size": 100}
    found = lab.iterate(
        "packed-features",
        {
            "plain": {"grain_train_files": one},
            "workers": {"grain_train_files": one, "grain_worker_count": 2},
            "chosen": {"grain_train_files": one, "grain_worker_count": -1},
            "mixture": {"grain_train_files": f"{one},0.7;{two},0.3"},
            "end": end,
            "padded": {**end, "generate_padding_batch_train": True},
        },
        batches=6,
    )
    plain = batches_of(found, "plain")
    check_same(batches_of(found, "workers"), plain, "2 workers")
    check_same(batches_of(found, "chosen"), plain, "-1 workers")
    ended, padded = batches_of(found, "end"), batches_of(found, "padded")
    check_same(padded[: len(ended)], ended, "padded")
    assert len(padded) == 6 > len(ended)
    assert not any(batch["inputs_segmentation"].any() for batch in padded[len(ended) :])
    batches_of(found, "mixture")


@run("a damaged shard: MaxText ends with an error")
def damaged(lab):
    evaluated = {"eval_interval": 2, "eval_steps": 50, "grain_worker_count_eval": 0}
    for name, kind, side in (
        ("records", "one", "train"),
        ("evaluation", "packed-one", "eval"),
    ):
        copy = lab.damaged(kind)
        # A step reads few records then.
        settings = {"packing": kind != "one", "steps": 80}
        settings["enable_data_shuffling"] = False
        settings |= {"grain_train_files": copy if side == "train" else lab.path(kind)}
        if side == "eval":
            settings |= {**evaluated, "grain_eval_files": copy, "eval_split": "train"}
        run_name = f"damaged-{name}"
        ((code, log),) = lab.start(run_name, **settings)
        assert code == 1, f"{name}: exit code {code}\n{tail(log)}"
        end = tail(log)
        assert "gristmill.loader.maxtext: " in end, f"{name}: {end}"
        assert str(copy) in end, f"{name}: {end}"
        assert lab.given(run_name), f"{name}: no batch before the damage"


def _encoder(lab):
    tokenizer = _tokenizer(lab)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _tokenizer(lab):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(f"{lab.path('tokenizer')}/tokenizer.json")
