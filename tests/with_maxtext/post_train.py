"""Runs of post-training by Tunix, and of data that fail."""

from __future__ import annotations

from tests.with_maxtext.checks import CHAT, CUT, STEPS, check_same, pairs, run
from tests.with_maxtext.lab import Lab, tail

_SFT = "maxtext.trainers.post_train.sft.train_sft"
_DPO = "maxtext.trainers.post_train.dpo.train_dpo"


def tunix_goes_on(lab: Lab, name: str, trainer: str, **settings: object) -> None:
    """Checks that a run of Tunix that goes on trains on what follows."""
    whole = lab.train(name, trainer=trainer, steps=STEPS, **settings)
    other = f"{name}-cut"
    settings["enable_checkpointing"] = True
    lab.train(other, trainer=trainer, steps=CUT, **settings)
    ended = lab.train(other, trainer=trainer, steps=STEPS, **settings)
    follow = STEPS - CUT
    # It asks for a batch after the last step too.
    given = ended.batches[-follow - 1 :]
    check_same(given, whole.batches[CUT:], "resumed")
    after = {step: whole.losses[step] for step in list(whole.losses)[-follow:]}
    for step, loss in after.items():
        assert abs(ended.losses[step] - loss) < 1e-6, f"the loss of step {step} differs"


@run("SFT by Tunix: resume exactly")
def tunix_sft(lab: Lab) -> None:
    tunix_goes_on(lab, "tunix-sft", _SFT, grain_train_files=lab.path("chat"), **CHAT)


@run("packed, by Tunix: resume exactly")
def tunix_packed(lab: Lab) -> None:
    tunix_goes_on(lab, "tunix-rows", _SFT, grain_train_files=lab.path("packed-one"))


@run("DPO by Tunix: resume exactly")
def tunix_dpo(lab: Lab) -> None:
    # It has to be a model that MaxText can convert; its sizes are those of the others.
    model = {"model_name": "qwen3-0.6b", "override_model_config": True}
    tunix_goes_on(lab, "tunix-dpo", _DPO, **model, **pairs(lab))


@run("a damaged shard: MaxText and Tunix end with an error")
def damaged(lab: Lab) -> None:
    evaluated = {"eval_interval": 2, "eval_steps": 50, "grain_worker_count_eval": 0}
    for name, trainer, kind, side in (
        ("records", None, "one", "train"),
        ("evaluation", None, "packed-one", "eval"),
        ("tunix", _SFT, "packed-one", "train"),
        ("tunix-evaluation", _SFT, "packed-one", "eval"),
    ):
        copy = lab.damaged(kind)
        # A step reads few records then.
        settings: dict[str, object] = {"packing": kind != "one", "steps": 80}
        settings["enable_data_shuffling"] = False
        settings |= {"grain_train_files": copy if side == "train" else lab.path(kind)}
        if side == "eval":
            settings |= {**evaluated, "grain_eval_files": copy, "eval_split": "train"}
        run_name = f"damaged-{name}"
        ((code, log),) = lab.start(run_name, trainer=trainer, **settings)
        assert code == 1, f"{name}: exit code {code}\n{tail(log)}"
        end = tail(log)
        assert "gristmill.loader.maxtext: " in end, f"{name}: {end}"
        assert str(copy) in end, f"{name}: {end}"
        assert lab.given(run_name), f"{name}: no batch before the damage"
