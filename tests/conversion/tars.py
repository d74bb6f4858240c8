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


def tar_of(
    members,
    *,
    format="ustar",
    mtime=0,
):
    """Returns a tar of members, each with its content, or a header without any."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[format]) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, content = member
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), mtime
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def header_of(name, *, kind=tarfile.REGTYPE, link=""):
    """Returns a header of a member without content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


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
    return [
        {
            name: value.encode("utf-8", "surrogateescape")
            if name == "__key__"
            else value
            for name, value in sample.items()
            if name != "__url__"
        }
        for sample in tariterators.group_by_keys(files)
    ]


def header_offsets(data):
    """Returns where the header of each member is, with what it says."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(info.offset_data - 512, info) for info in tar]


def some_members(*, max_samples=6):
    """Draws members of samples, with some that are in none among them."""
    content = st.sampled_from([0, 1, 511, 512, 513, 1300]).map(lambda n: b"\x01" * n)
    part = st.sampled_from(["jpg", "TXT", "seg.png", "", "json"])
    folder = st.sampled_from(["", "a/", "a.b/c/", "./", "/abs/"])
    passed = st.sampled_from(
        ["README", "a/README", "__meta__.json", "__x__/1.jpg", "d/.hidden", ".hidden"]
    )
    name = st.builds(
        lambda at, key, parts: [f"{at}{key}.{part}" for part in parts],
        folder,
        st.sampled_from(["1", "2", "_", "grün", "k" * 120]),
        st.lists(part, min_size=1, max_size=3, unique_by=str.lower),
    )
    names = st.one_of(name, name, name, passed.map(lambda name: [name]))
    return (
        st.lists(names, max_size=max_samples)
        .map(lambda groups: [name for group in groups for name in group])
        .flatmap(
            lambda names: st.tuples(*(st.tuples(st.just(n), content) for n in names))
        )
        .map(list)
    )
