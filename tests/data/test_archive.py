import hashlib
import io
import random
import resource
import tarfile

import pytest

from bayesnorm.data.archive import Member, extract
from bayesnorm.errors import DataError

CONTENTS = {"a.bin": bytes(range(200)) * 50, "b.bin": b"second" * 300}
MEMBERS = {name: Member(len(content), hashlib.sha256(content).hexdigest()) for name, content in CONTENTS.items()}
IGNORED = ("readme.html",)


def regular(name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    return entry, content


def special(name, kind, link=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    return entry, b""


GOOD = [
    special("top", tarfile.DIRTYPE),
    *(regular(f"top/{name}", content) for name, content in CONTENTS.items()),
    regular("top/readme.html", b"hello"),
]


def pack(path, entries):
    with tarfile.open(path, "w:gz") as tar:
        for entry, content in entries:
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def places(tmp_path):
    """Archive, and the folder it is extracted to; ``out`` holds nothing else."""
    out = tmp_path / "out"
    out.mkdir()
    return tmp_path / "archive.tar.gz", out / "made"


def refused(archive, folder, *words):
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(DataError) as caught:
        extract(archive, "top", folder, MEMBERS, IGNORED)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(archive), *words):
        assert word in message
    assert sorted(folder.parent.rglob("*")) == before
    return message


def test_expected_files_only(places):
    archive, folder = places
    extract(pack(archive, GOOD), "top", folder, MEMBERS, IGNORED)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


def test_folder_has_the_usual_permissions(places):
    archive, folder = places
    usual = folder.parent / "usual"
    usual.mkdir()
    extract(pack(archive, GOOD), "top", folder, MEMBERS, IGNORED)
    assert folder.stat().st_mode == usual.stat().st_mode


def test_existing_folder_keeps_its_other_files(places):
    archive, folder = places
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"damaged")
    (folder / "mine.txt").write_text("mine")
    extract(pack(archive, GOOD), "top", folder, MEMBERS, IGNORED)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {**CONTENTS, "mine.txt": b"mine"}
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


@pytest.mark.parametrize(
    "entry",
    [
        regular("../outside", b"x"),
        regular("/tmp/outside", b"x"),
        regular("top/../../outside", b"x"),
        regular("top/more.bin", b"x"),
        regular("other/a.bin", CONTENTS["a.bin"]),
        regular("a.bin", CONTENTS["a.bin"]),
        regular("top/a.bin", CONTENTS["a.bin"]),  # a second time
        special("top/readme.html", tarfile.SYMTYPE, "/etc/hostname"),
        special("top/link", tarfile.SYMTYPE, "a.bin"),
        special("top/hard", tarfile.LNKTYPE, "top/a.bin"),
        special("top/pipe", tarfile.FIFOTYPE),
        special("top/below", tarfile.DIRTYPE),
    ],
    ids=lambda entry: f"{entry[0].name}-{entry[0].type.decode()}",
)
def test_unexpected_entries_are_refused(places, entry):
    archive, folder = places
    assert refused(pack(archive, [*GOOD, entry]), folder, "unexpected entry", entry[0].name)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_link_under_an_expected_name(places, kind):
    archive, folder = places
    (places[0].parent / "secret").write_bytes(CONTENTS["a.bin"])
    entries = [special("top/a.bin", kind, "../secret"), *GOOD[2:]]
    assert refused(pack(archive, entries), folder, "unexpected entry", "top/a.bin")


def test_missing_file(places):
    archive, folder = places
    assert refused(pack(archive, GOOD[:2]), folder, "top/b.bin missing")


def test_other_size(places):
    archive, folder = places
    assert refused(pack(archive, [regular("top/a.bin", b"short"), *GOOD[2:]]), folder, "5 bytes", "10,000")


def test_other_content(places):
    archive, folder = places
    other = b"x" * len(CONTENTS["a.bin"])
    digests = hashlib.sha256(other).hexdigest(), MEMBERS["a.bin"].sha256
    assert refused(pack(archive, [regular("top/a.bin", other), *GOOD[2:]]), folder, "top/a.bin", *digests)


def test_damage_leaves_an_existing_folder_alone(places):
    archive, folder = places
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"older")
    refused(pack(archive, GOOD[:2]), folder, "missing")
    assert (folder / "a.bin").read_bytes() == b"older"


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_truncated(places, kept):
    archive, folder = places
    noise = random.Random(0).randbytes(len(CONTENTS["a.bin"]))  # does not compress, so that the cut falls into it
    whole = pack(archive, [regular("top/a.bin", noise), *GOOD[2:]]).read_bytes()
    archive.write_bytes(whole[: int(kept * len(whole))])
    assert refused(archive, folder, "not a readable archive")


def test_flipped_bit(places):
    archive, folder = places
    whole = bytearray(pack(archive, GOOD).read_bytes())
    whole[len(whole) // 2] ^= 1
    archive.write_bytes(whole)
    assert refused(archive, folder)


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\x1f\x8b"])
def test_something_else(places, content):
    archive, folder = places
    archive.write_bytes(content)
    assert refused(archive, folder, "not a readable archive")


def test_uncompressed_archive(places):
    archive, folder = places
    with tarfile.open(archive, "w") as tar:
        tar.addfile(GOOD[1][0], io.BytesIO(GOOD[1][1]))
    assert refused(archive, folder, "not a readable archive")


def test_no_archive(places):
    assert refused(*places, "No such file")


def test_pickle_is_not_run(places, malicious):
    archive, folder = places
    archive.write_bytes(malicious.content)
    refused(archive, folder, "not a readable archive")
    assert not malicious.ran


def test_full_disk(places):
    archive, folder = places
    pack(archive, GOOD)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        assert refused(archive, folder, "too large", "nothing half-written is left")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
