"""Runs on rows of conversations: tokens, targets and losses that MaxText sees."""

from tests.with_maxtext import toy
from tests.with_maxtext.checks import CHAT, STEPS, batches_of, check_same, pieces, run
from tests.with_maxtext.lab import NATIVE_SFT
from tests.with_maxtext.table import resume_exactly

_SFT = {"use_sft": True}


def _expected():
    """Returns tokens and targets of the conversations as they were made."""
    found = []
    for ids, said in toy.chats():
        following = zip(ids[1:], said[1:], strict=True)
        targets = [token if of and of.trained else -1 for token, of in following]
        found.append((tuple(ids), (*targets, -1)))
    return found


@run("conversations: tokens, targets and trained positions of 1,000 rows and more")
def what_is_trained(lab):
    once = {"num_epoch": 1, "grain_train_files": lab.path("packed-chat"), **_SFT}
    found = lab.iterate("chat-rows", {"all": once}, batches=9_999)
    batches = batches_of(found, "all")
    rows = sum((b["inputs_segmentation"] > 0).any(axis=1).sum() for b in batches)
    assert rows >= 1_000, f"{rows} rows"
    assert sorted(pieces(batches)) == sorted(_expected()), "other tokens or targets"


@run("conversations: train, resume exactly, evaluate")
def conversations(lab):
    files = {"grain_train_files": lab.path("packed-chat"), "eval_split": "train"}
    resume_exactly(lab, "chats", **files, **_SFT)


@run("conversations: by MaxText's own trainer of conversations")
def native(lab):
    files = {"grain_train_files": lab.path("packed-chat"), **_SFT}
    done = lab.train("chat-native", trainer=NATIVE_SFT, steps=STEPS, **files)
    plain = lab.train("chat-plain", steps=STEPS, **files)
    check_same(done.batches[:STEPS], plain.batches[:STEPS], "the trainers")


@run("SFT by MaxText's tokens: without ends around each part")
def own_tokens(lab):
    template = {"grain_train_files": lab.path("chat"), **CHAT}
    ends = {"add_bos": False, "add_eos": False}
    # MaxText would take a name such as "off" for a boolean.
    jobs = {"template": template, "bare": {**template, **ends}}
    found = lab.iterate("chat-ends", jobs, batches=3)
    bare = batches_of(found, "bare")
    check_same(batches_of(found, "template"), bare, "add_bos and add_eos")
