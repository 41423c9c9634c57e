import dataclasses
import errno
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
import torch

from bayesnorm.data.augment import Augment
from bayesnorm.data.cifar10 import CLASSES, OFFICIAL, RECORD, cifar10, fetch, verify
from bayesnorm.errors import DataError

RECORDS = 20


def content(number):
    """Records of a file: labels 0 to 9 in turn, then bytes that differ from record to record."""
    made = torch.randint(0, 256, (RECORDS, RECORD), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
    made[:, 0] = (torch.arange(RECORDS) + number) % 10
    return made


CONTENTS = {name: bytes(content(number).flatten().tolist()) for number, name in enumerate(OFFICIAL.files)}


def described(contents, archive=b""):
    digests = {name: hashlib.sha256(found).hexdigest() for name, found in contents.items()}
    return dataclasses.replace(
        OFFICIAL, files=digests, records=RECORDS, sha256=hashlib.sha256(archive).hexdigest(), url="https://unused"
    )


def packed(contents):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, found in {**contents, "batches.meta.txt": b"airplane", "readme.html": b"-"}.items():
            entry = tarfile.TarInfo(f"{OFFICIAL.folder}/{name}")
            entry.size = len(found)
            tar.addfile(entry, io.BytesIO(found))
    return buffer.getvalue()


ARCHIVE = packed(CONTENTS)
SOURCE = described(CONTENTS, ARCHIVE)


def write(folder, contents=CONTENTS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in contents.items():
        (folder / name).write_bytes(found)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / OFFICIAL.folder)


def fails(directory, *words, source=SOURCE, act=cifar10):
    with pytest.raises(DataError) as caught:
        act(directory, source=source)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_official_table():
    assert OFFICIAL.size == 30_730_000
    assert list(OFFICIAL.files) == [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    assert {len(digest) for digest in OFFICIAL.files.values()} == {64}
    assert OFFICIAL.url.startswith("https://")


def test_every_record_is_in_its_place(folder):
    data = cifar10(folder, source=SOURCE)
    assert (len(data.train), len(data.val), len(data.test)) == (90, 10, 20)
    assert data.classes == CLASSES
    assert data.augment == Augment(shift=2, hflip=True)
    assert data.augment_val
    last = content(5)
    assert data.test.images.dtype == torch.uint8
    assert torch.equal(data.test.images, last[:, 1:].view(-1, 3, 32, 32))
    assert torch.equal(data.test.targets, last[:, 0].long())
    rest = torch.cat([content(number) for number in range(5)])
    both = torch.cat([data.train.images, data.val.images]).flatten(1)
    targets = torch.cat([data.train.targets, data.val.targets])
    found = torch.cat([targets[:, None].byte(), both], 1)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, rest.tolist()))


def test_bytes_are_channel_row_column(tmp_path):
    record = bytearray(RECORD)
    record[0], record[1 + 2 * 1024 + 5 * 32 + 9] = 7, 200
    contents = {**CONTENTS, "test_batch.bin": bytes(record) * RECORDS}
    data = cifar10(write(tmp_path / "data", contents), source=described(contents))
    expected = torch.zeros(3, 32, 32, dtype=torch.uint8)
    expected[2, 5, 9] = 200
    assert torch.equal(data.test.images[3], expected)
    assert set(data.test.targets.tolist()) == {7}


def test_split_follows_from_the_seed(folder):
    first, same, other = (cifar10(folder, seed, SOURCE) for seed in (0, 0, 1))
    assert first.digest() == same.digest() != other.digest()
    assert torch.equal(first.test.images, other.test.images)


def test_parent_and_folder_of_another_name(folder, tmp_path):
    here = cifar10(folder, source=SOURCE).digest()
    assert cifar10(str(tmp_path), source=SOURCE).digest() == here
    assert cifar10(write(tmp_path / "renamed"), source=SOURCE).digest() == here


def test_archive_is_extracted_beside_itself(folder, tmp_path):
    place = tmp_path / "fresh"
    place.mkdir()
    (place / SOURCE.archive).write_bytes(ARCHIVE)
    assert cifar10(place, source=SOURCE).digest() == cifar10(folder, source=SOURCE).digest()
    assert sorted(path.name for path in place.iterdir()) == sorted([SOURCE.archive, SOURCE.folder])
    assert {path.name: path.read_bytes() for path in (place / SOURCE.folder).iterdir()} == CONTENTS


def test_archive_beside_the_folder_that_is_asked_for(tmp_path):
    (tmp_path / SOURCE.archive).write_bytes(ARCHIVE)
    assert len(cifar10(tmp_path / SOURCE.folder, source=SOURCE).test) == RECORDS


def test_nothing_there(tmp_path):
    fails(tmp_path, "data_batch_1.bin is missing", f"`bayesnorm data cifar10 --dir {tmp_path}` downloads it")
    fails(tmp_path / "not here", "missing", f"--dir '{tmp_path / 'not here'}'")
    assert list(tmp_path.iterdir()) == []


def test_a_file_as_directory(folder):
    assert fails(folder / "test_batch.bin", "is a file", OFFICIAL.archive)


@pytest.mark.parametrize("name", CONTENTS)
def test_missing_file(folder, name):
    (folder / name).unlink()
    assert fails(folder, f"{folder / name} is missing", f"--dir {folder.parent}`")


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("size", [0, 100, len(CONTENTS["test_batch.bin"]) - 1])
def test_truncated_file(folder, name, size):
    (folder / name).write_bytes(CONTENTS[name][:size])
    assert fails(folder, str(folder / name), "truncated", f"{size:,} bytes instead of {SOURCE.size:,}")


def test_longer_file(folder):
    (folder / "test_batch.bin").write_bytes(CONTENTS["test_batch.bin"] + b"x")
    assert fails(folder, "test_batch.bin", f"{SOURCE.size + 1:,} bytes instead of {SOURCE.size:,}")


@pytest.mark.parametrize("name", CONTENTS)
def test_flipped_bit(folder, name):
    damaged = bytearray(CONTENTS[name])
    damaged[5000] ^= 4
    (folder / name).write_bytes(damaged)
    assert fails(
        folder, str(folder / name), "damaged", hashlib.sha256(damaged).hexdigest(), SOURCE.files[name], "replaces it"
    )


def test_label_out_of_range(tmp_path):
    wrong = bytearray(CONTENTS["data_batch_3.bin"])
    wrong[4 * RECORD] = 10
    contents = {**CONTENTS, "data_batch_3.bin": bytes(wrong)}
    assert fails(write(tmp_path, contents), "data_batch_3.bin", "damaged")
    assert fails(tmp_path, "data_batch_3.bin", "record 4", "label 10", source=described(contents))


@pytest.mark.parametrize("damaged", [ARCHIVE[:-100], b"", b"another archive", packed({"test_batch.bin": b"x"})])
def test_wrong_archive(tmp_path, damaged):
    (tmp_path / SOURCE.archive).write_bytes(damaged)
    found = hashlib.sha256(damaged).hexdigest()
    fails(tmp_path, str(tmp_path / SOURCE.archive), found, SOURCE.sha256, "replaces it")
    assert [path.name for path in tmp_path.iterdir()] == [SOURCE.archive]


def test_archive_of_other_files(tmp_path):
    contents = {**CONTENTS, "data_batch_2.bin": CONTENTS["data_batch_1.bin"]}
    archive = packed(contents)
    (tmp_path / SOURCE.archive).write_bytes(archive)
    fails(tmp_path, "data_batch_2.bin", source=described(CONTENTS, archive))
    assert [path.name for path in tmp_path.iterdir()] == [SOURCE.archive]


def test_pickle_is_not_run(folder, tmp_path, malicious):
    padded = malicious.content + bytes(SOURCE.size - len(malicious.content))
    for found in (malicious.content, padded):
        (folder / "data_batch_1.bin").write_bytes(found)
        fails(folder, "data_batch_1.bin")
        assert not verify(folder, SOURCE)[0].ok
    place = tmp_path / "fresh"
    place.mkdir()
    (place / SOURCE.archive).write_bytes(malicious.content)
    fails(place, SOURCE.archive)
    fails(place, "not a readable archive", source=described(CONTENTS, malicious.content))
    assert not malicious.ran


def test_verify_reports_every_file(folder):
    assert all(found.ok and found.bytes == SOURCE.size and not found.problem for found in verify(folder, SOURCE))
    (folder / "data_batch_1.bin").unlink()
    (folder / "data_batch_2.bin").write_bytes(b"short")
    (folder / "data_batch_4.bin").write_bytes(bytes(SOURCE.size))
    found = {report.file.name: report for report in verify(folder.parent, SOURCE)}
    assert [name for name, report in found.items() if report.ok] == [
        "data_batch_3.bin",
        "data_batch_5.bin",
        "test_batch.bin",
    ]
    assert found["data_batch_1.bin"].problem == "missing"
    assert "truncated" in found["data_batch_2.bin"].problem
    assert hashlib.sha256(bytes(SOURCE.size)).hexdigest() in found["data_batch_4.bin"].problem


def test_file_that_cannot_be_read(folder, monkeypatch):
    opened = Path.open

    def refuse(path, *mode):
        if path.name == "data_batch_2.bin":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *mode)

    monkeypatch.setattr(Path, "open", refuse)
    fails(folder, f"cannot read {folder / 'data_batch_2.bin'}: Permission denied")
    assert [found.problem for found in verify(folder, SOURCE)] == ["", "unreadable, Permission denied", *[""] * 4]


@pytest.fixture
def online(server):
    server.content = ARCHIVE
    return dataclasses.replace(SOURCE, url=server.url)


def test_fetch_from_nothing(tmp_path, online, server):
    seen = []
    place = tmp_path / "new" / "place"
    assert fetch(place, lambda done, total: seen.append((done, total)), online) == place / SOURCE.folder
    assert all(found.ok for found in verify(place, SOURCE))
    assert seen[-1] == (len(ARCHIVE), len(ARCHIVE))
    assert sorted(path.name for path in place.iterdir()) == sorted([SOURCE.archive, SOURCE.folder])
    fetch(place, source=online)
    assert len(server.ranges_seen) == 1


def test_fetch_of_what_is_there_needs_no_network(folder, online, server):
    assert fetch(folder, source=online) == folder
    assert server.ranges_seen == []


def test_fetch_uses_the_archive_that_is_there(tmp_path, online, server):
    (tmp_path / SOURCE.archive).write_bytes(ARCHIVE)
    fetch(tmp_path, source=online)
    assert all(found.ok for found in verify(tmp_path, SOURCE))
    assert server.ranges_seen == []


def test_fetch_repairs(folder, online):
    (folder / "data_batch_2.bin").write_bytes(b"short")
    (folder / "test_batch.bin").unlink()
    (folder / "mine.txt").write_text("mine")
    (folder.parent / SOURCE.archive).write_bytes(b"truncated")
    fetch(folder, source=online)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {**CONTENTS, "mine.txt": b"mine"}


def test_fetch_resumes(tmp_path, online, server):
    server.drop = 1000
    fails(tmp_path, "1,000 bytes received are kept", source=online, act=fetch)
    assert [path.name for path in tmp_path.iterdir()] == [SOURCE.archive + ".part"]
    fetch(tmp_path, source=online)
    assert server.ranges_seen == [None, "bytes=1000-"]
    assert all(found.ok for found in verify(tmp_path, SOURCE))


def test_fetch_of_a_wrong_archive_leaves_nothing(tmp_path, online, server):
    server.content = packed({"test_batch.bin": b"x"})
    fails(tmp_path, SOURCE.sha256, hashlib.sha256(server.content).hexdigest(), source=online, act=fetch)
    assert list(tmp_path.iterdir()) == []
