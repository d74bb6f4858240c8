"""Tars of samples: `tarfile` writes them, the package webdataset reads them."""

import io
import random
import tarfile

from hypothesis import strategies as st

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


def tar_of(members, *, format="ustar", mtime=0):
    """Returns a tar of members, each with its content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[format]) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), mtime
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def members_of(
    samples,
    extensions=("cls", "jpg", "json"),
    *,
    seed=0,
    sizes=(0, 1, 17, 511, 512, 513, 1500),
):
    """Returns the members of samples of all these extensions, of awkward sizes."""
    chance = random.Random(seed)
    return [
        (f"d.e/{number:05d}.{extension}", chance.randbytes(chance.choice(sizes)))
        for number in range(samples)
        for extension in extensions
    ]


def read_by_webdataset(data):
    """Returns the samples that the package webdataset finds in a tar."""
    from webdataset import tariterators

    files = tariterators.tar_file_expander([{"url": "-", "stream": io.BytesIO(data)}])
    samples = [*tariterators.group_by_keys(files)]
    for sample in samples:
        del sample["__url__"]
        sample["__key__"] = sample["__key__"].encode("utf-8", "surrogateescape")
    return samples


def header_offsets(data):
    """Returns where the header of each member is, with what it says."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(info.offset_data - 512, info) for info in tar]


def some_members():
    """Draws members, most of them in samples; names of some are in none."""
    name = st.builds(
        "{}{}.{}".format,
        st.sampled_from(["", "a/", "a.b/c/", "./", "/abs/"]),
        st.sampled_from(["1", "2", "_", "grün", "k" * 120]),
        st.sampled_from(["jpg", "TXT", "seg.png", "", "json"]),
    )
    passed = st.sampled_from(
        ["README", "a/README", "__meta__.json", "__x__/1.jpg", "d/.hidden", ".hidden"]
    )
    content = st.sampled_from([0, 1, 511, 512, 513, 1300]).map(lambda n: b"\x01" * n)
    members = st.tuples(name | name | name | passed, content)
    samples = st.lists(members, max_size=14, unique_by=lambda member: member[0].lower())
    return samples.map(sorted) | st.lists(members, max_size=6)
