"""Data sets: which there are, where they are, and how they are fetched and checked.

A data set is a folder of files below one of `folders.data_folders()`. A download is resumed where
it was interrupted, checked before it takes its place, and never touches a good file.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from flatout.errors import RunFailed, UsageError, nearest
from flatout.system import atomic_files
from flatout.system.paths import data_folders
from flatout.system.site_policy import read_site

_PAUSE_S = 0.2


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a data set.

    size_bytes: to be downloaded, about: mirrors compress again.
    sha256: of the content, which for a .gz file is the uncompressed one, for the same reason.
    """

    name: str
    size_bytes: int
    sha256: str


class DataSet(msgspec.Struct, frozen=True, kw_only=True):
    """A data set that flatout can fetch. mirrors: addresses that file names are added to."""

    title: str
    files: tuple[DataFile, ...]
    licence: str
    source: str
    mirrors: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The approximate size of the download."""
        return sum(file.size_bytes for file in self.files)


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a download: file, and bytes done and to do over all files that were missing."""

    file: str
    done_bytes: int
    total_bytes: int


DATA_SETS: Mapping[str, DataSet] = MappingProxyType({
    "mnist": DataSet(
        title="70,000 handwritten digits, 28 x 28 (60,000 for training, 10,000 for testing)",
        licence="CC BY-SA 3.0",
        source="Y. LeCun, C. Cortes, C. J. C. Burges, http://yann.lecun.com/exdb/mnist/",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files=(
            DataFile(
                name="train-images-idx3-ubyte.gz",
                size_bytes=9_912_422,
                sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            DataFile(
                name="train-labels-idx1-ubyte.gz",
                size_bytes=28_881,
                sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            DataFile(
                name="t10k-images-idx3-ubyte.gz",
                size_bytes=1_648_877,
                sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            DataFile(
                name="t10k-labels-idx1-ubyte.gz",
                size_bytes=4_542,
                sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    "tinyshakespeare": DataSet(
        title="40,000 lines of Shakespeare's plays in one text file",
        licence="public domain (the text), MIT (its repository)",
        source="A. Karpathy, https://github.com/karpathy/char-rnn",
        mirrors=(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        ),
        files=(
            DataFile(
                name="input.txt",
                size_bytes=1_115_394,
                sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        ),
    ),
})  # fmt: skip


def data_set(name: str, table: Mapping[str, DataSet] = DATA_SETS) -> DataSet:
    """The data set of that name.

    Raises:
        UsageError: unknown-data-set.
    """
    if name not in table:
        raise UsageError(
            "unknown-data-set", f"there is no data set `{name}`.", fix=nearest(name, table)
        )
    return table[name]


def find(name: str, table: Mapping[str, DataSet] = DATA_SETS) -> Path | None:
    """The first folder that holds all files of a data set, or None. Their content is not read."""
    files = data_set(name, table).files
    for folder in data_folders():
        if all((folder / name / file.name).is_file() for file in files):
            return folder / name
    return None


def verify(name: str, folder: Path, table: Mapping[str, DataSet] = DATA_SETS) -> None:
    """Reads every file of a data set in that folder and compares checksums.

    Raises:
        RunFailed: damaged-data, for a damaged file or a missing one.
    """
    for file in data_set(name, table).files:
        path = folder / file.name
        wrong = _what_is_wrong(path, file)
        if wrong:
            is_ours = folder == data_folders()[-1] / name
            fix = f"flatout data get {name}"
            raise RunFailed(
                "damaged-data",
                f"{path} of the data set `{name}` cannot be used.",
                because=wrong,
                # A folder of the user's own is only read: a download goes to flatout's.
                fix=f"download it again: {fix}" if is_ours else f"delete {path}, then: {fix}",
            )


def require(name: str, table: Mapping[str, DataSet] = DATA_SETS) -> Path:
    """The folder that holds a data set, with every file checked.

    Raises:
        UsageError: unknown-data-set, data-missing.
        RunFailed: damaged-data.
    """
    folder = find(name, table)
    if folder is None:
        raise UsageError(
            "data-missing",
            f"the data set `{name}` has not been downloaded.",
            because=f"looked in {', '.join(str(parent / name) for parent in data_folders())}",
            fix=f"flatout data get {name}",
        )
    verify(name, folder, table)
    return folder


def fetch(
    name: str, table: Mapping[str, DataSet] = DATA_SETS, mirror: str | None = None
) -> Iterator[Fetching]:
    """Downloads what a data set lacks into the last data folder, while it is iterated over.

    A mirror of everything (`mirror`, else FLATOUT_DATA_MIRROR, else what `flatout.toml` settles)
    has a folder for each data set; where it has not what is right, the set's own are used.

    Good files stay as they are, damaged ones are replaced. What a break leaves is kept, and the
    next call continues behind it.

    Raises:
        UsageError: unknown-data-set, folder-not-writable.
        RunFailed: download-failed, disk-full.
    """
    # urllib takes 40 ms to import, and nearly always the data is here already.
    from flatout.system.download import download

    source = data_set(name, table)
    folder = data_folders()[-1] / name
    with atomic_files.mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = atomic_files.FileLock(folder / ".lock")
    while not lock.acquire():
        # Another process is at it: what it fetches will do.
        yield Fetching(file=source.files[0].name, done_bytes=0, total_bytes=source.size_bytes)
        time.sleep(_PAUSE_S)
    try:
        missing = [file for file in source.files if _what_is_wrong(folder / file.name, file)]
        total_bytes = sum(file.size_bytes for file in missing)
        done_bytes = 0
        for file in missing:
            file_bytes = 0
            urls = [
                mirror_url + file.name
                for mirror_url in (*_mirror_of(name, mirror), *source.mirrors)
            ]
            check = functools.partial(_what_is_wrong, file=file)
            coming = download(urls, folder / file.name, file.size_bytes, check)
            for file_bytes, length_bytes in coming:
                yield Fetching(
                    file=file.name,
                    done_bytes=done_bytes + file_bytes,
                    total_bytes=total_bytes - file.size_bytes + length_bytes,
                )
            done_bytes += file_bytes
            total_bytes += file_bytes - file.size_bytes
    finally:
        lock.release()


def downloaded_files(table: Mapping[str, DataSet] = DATA_SETS) -> list[Path]:
    """The files that `fetch` has downloaded, whole or started.

    The folder of data is where people put their own, too: only the files of known data sets count.
    """
    files = []
    for name, source in table.items():
        folder = data_folders()[-1] / name
        paths = [folder / file.name for file in source.files]
        lock = folder / ".lock"
        present = [path for path in (*paths, *map(atomic_files.part_path, paths)) if path.is_file()]
        files += [*present, lock] if present and lock.is_file() else present
    return files


def _mirror_of(name: str, mirror: str | None) -> tuple[str, ...]:
    named = os.environ.get("FLATOUT_DATA_MIRROR", "").strip()
    url = mirror or named or read_site().mirrors.data
    return (f"{url.rstrip('/')}/{name}/",) if url else ()


def _what_is_wrong(path: Path, file: DataFile) -> str | None:
    """The difference of the content from the file's; None if it is the file's."""
    with atomic_files.mapped_os_errors(path):
        try:
            with gzip.open(path) if file.name.endswith(".gz") else open(path, "rb") as stream:
                got = hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            return "it is missing"
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            return f"it cannot be decompressed: {error}"
    if got != file.sha256:
        return f"SHA-256 of its content: expected {file.sha256}, got {got}"
    return None
