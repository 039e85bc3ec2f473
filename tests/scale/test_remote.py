"""Inputs and dumps in an object store whose requests fail: every object is whole, and nothing is lost."""

import io
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from attnscope.batch import remote, request
from attnscope.batch.summary import Summary
from attnscope.cli import main
from tests.scale.test_merge import QUIET, content, lines

pytest.importorskip("moto", reason="moto is not installed")
pytest.importorskip("s3fs", reason="s3fs is not installed")
from tests.helpers.flaky_store import flaky_store


@pytest.fixture(scope="module")
def store():
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # they know the address of an earlier server
    with flaky_store() as (address, app):
        yield address, app


@pytest.fixture
def folder(store, tmp_path, monkeypatch):
    address, app = store
    for name, value in {
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
        "ENDPOINT_URL": address,
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_WAITS", (0.0,) * 30)
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines(80)))
    monkeypatch.chdir(tmp_path)
    app.fail(0)
    files = bucket()
    if files.exists("texts"):
        files.rm("texts", recursive=True)
    files.mkdir("texts")
    yield tmp_path
    app.fail(0)


def bucket():
    """The file system that the package uses too: a client takes half a second to make."""
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False)


def objects():
    files = bucket()
    return {path.removeprefix("texts/"): files.cat_file(path) for path in files.find("texts")}


def write(source, output, *options):
    return main(["batch", source, "-o", output, *QUIET, *options])


def records(name):
    """The records of a dump without their checksums, which depend on the header."""
    return [line.rpartition(',"check"')[0] for line in Path(name).read_text().splitlines()[1:]]


def staged(folder):
    return [path for path in (folder / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["d.jsonl", "d", "d.parquet/"])
def test_a_dump_in_a_store_is_that_on_a_disk(folder, store, name):
    """Every second request fails: it is refused, or done and answered wrongly, or the answer is cut off."""
    assert write("texts.txt", name) == 0
    expected = content(folder / name)
    expected = expected if isinstance(expected, dict) else {"": expected}
    store[1].fail(2)
    assert write("texts.txt", f"s3://texts/{name}") == 0
    assert store[1].failures > 1
    store[1].fail(0)
    found = objects()
    manifest = found.pop("d.parquet.manifest.jsonl", None)
    if name == "d.parquet/":
        assert manifest == (folder / "d.parquet.manifest.jsonl").read_bytes()
    assert {path.partition("/")[2]: data for path, data in found.items()} == expected
    assert staged(folder) == []


def test_an_input_in_a_store(folder, store):
    assert write("texts.txt", "d.jsonl") == 0
    bucket().put_file("texts.txt", "texts/in/texts.txt")
    store[1].fail(2)
    assert write("s3://texts/in/texts.txt", "e.jsonl") == 0
    assert store[1].failures > 1
    there, here = (
        json.loads(Path(name).read_text().splitlines()[0])["input"]
        for name in ("e.jsonl", "d.jsonl")
    )
    assert there == {**here, "name": "s3://texts/in/texts.txt"}
    assert records("e.jsonl") == records("d.jsonl")


@pytest.mark.parametrize("place", ["gs://texts", "hf://datasets/someone/texts"])
def test_other_stores(tmp_path, monkeypatch, place):
    """A store in memory takes the place of gcsfs and huggingface_hub; every second request fails, before or after."""
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.registry import _registry

    requests = []

    def failing(method):
        def call(self, *args, **options):
            requests.append(method.__name__)
            if len(requests) % 4 == 1:
                raise OSError("503 Slow Down")
            answer = method(self, *args, **options)
            if len(requests) % 4 == 3:
                raise TimeoutError("the answer is lost")
            return answer

        return call

    class Memory(MemoryFileSystem):
        store, pseudo_dirs, cachable = {}, [""], False
        protocol = place.partition(":")[0]
        info, find, cat_file, put_file, rm_file = (
            failing(getattr(MemoryFileSystem, name))
            for name in ("info", "find", "cat_file", "put_file", "rm_file")
        )

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.removeprefix(f"{cls.protocol}://"))

    monkeypatch.setitem(_registry, Memory.protocol, Memory)
    monkeypatch.setattr(remote, "_WAITS", (0.0,) * 30)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("".join(f"{line}\n" for line in lines(40)))
    folder = place.partition("://")[2]
    for name in ("d.jsonl", "d.parquet/"):
        assert write("texts.txt", name) == write("texts.txt", f"{place}/{name}") == 0
    expected = {str(path): path.read_bytes() for path in Path().rglob("d*") if path.is_file()}
    expected |= {
        f"d.parquet/{name}": data for name, data in content(tmp_path / "d.parquet").items()
    }
    assert {
        path.removeprefix(f"/{folder}/"): file.getvalue() for path, file in Memory.store.items()
    } == expected
    Memory().pipe_file(f"/{folder}/in.txt", Path("texts.txt").read_bytes())
    assert write(f"{place}/in.txt", "e.jsonl") == 0
    assert records("e.jsonl") == records("d.jsonl")
    assert staged(tmp_path) == []
    assert len(requests) > 30


class Killed(BaseException):
    """The process ends here."""


def test_a_run_that_is_interrupted_goes_on_and_nothing_torn_is_seen(folder, monkeypatch):
    """Parts of tables appear one by one, each whole; what says that they are complete comes last."""
    import pyarrow.parquet as pq

    assert write("texts.txt", "d.parquet/") == 0
    expected = content(folder / "d.parquet")
    original, sent, seen, stop = remote.Store.write, [], [], threading.Event()

    def write_some(self, file, name=""):
        original(self, file, name)
        sent.append(name)
        if len(sent) in (2, 5):
            raise Killed

    def look():
        while not stop.is_set():
            found = objects()
            seen.append(set(found))
            for path, data in found.items():
                if path.endswith(".parquet") and "_SUCCESS" not in path:
                    assert pq.read_table(io.BytesIO(data)).num_rows > 0
                    assert data == expected[Path(path).name]

    monkeypatch.setattr(remote.Store, "write", write_some)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(2):
            assert write("texts.txt", "s3://texts/d.parquet/") != 0
            assert "texts/d.parquet/_SUCCESS.parquet" not in objects()
        assert write("texts.txt", "s3://texts/d.parquet/") == 0
    finally:
        stop.set()
        watcher.join()
    found = objects()
    assert (
        found.pop("d.parquet.manifest.jsonl") == (folder / "d.parquet.manifest.jsonl").read_bytes()
    )
    assert {Path(path).name: data for path, data in found.items()} == expected
    assert max(sent.count(name) for name in sent) <= 2  # what was sent is not sent again
    assert all(
        "d.parquet/_SUCCESS.parquet" not in names or len(names) == len(expected) + 1
        for names in seen
    )


def test_a_finished_dump_is_brought_back_to_be_extended(folder, capsys):
    assert write("texts.txt", "s3://texts/d.jsonl", "--limit", "30") == 0
    assert write("texts.txt", "s3://texts/d.jsonl", "--limit", "30") == 0
    assert write("texts.txt", "s3://texts/d.jsonl", "--limit", "60") == 0
    assert write("texts.txt", "d.jsonl", "--limit", "60") == 0
    assert objects() == {"d.jsonl": Path("d.jsonl").read_bytes()}
    assert write("texts.txt", "s3://texts/d.jsonl", "--top", "2") == 1
    assert "was started with" in capsys.readouterr().err
    assert write("texts.txt", "s3://texts/d.jsonl", "--top", "2", "--force") == 0
    assert json.loads(objects()["d.jsonl"].splitlines()[0])["settings"]["top"] == 2


def test_parts_that_a_new_dump_does_not_have_are_removed(folder):
    assert write("texts.txt", "s3://texts/d.parquet/") == 0
    assert write("texts.txt", "s3://texts/d.parquet/", "--limit", "20", "--force") == 0
    assert write("texts.txt", "d.parquet/", "--limit", "20") == 0
    found = {Path(path).name for path in objects()}
    assert found == {path.name for path in (folder / "d.parquet").iterdir()} | {
        "d.parquet.manifest.jsonl"
    }
    shutil.rmtree(folder / "cache")


def test_what_is_missing_is_not_removed(folder, monkeypatch):
    """Hugging Face refuses to."""
    files = bucket()
    files.pipe_file("texts/a", b"a")
    removed = []
    monkeypatch.setattr(files, "rm_file", removed.append)
    for name in ("a", "b"):
        remote.Store("s3://texts").remove(name)
    assert removed == ["texts/a"]


@pytest.mark.parametrize(
    ("source", "output", "code", "message"),
    [
        ("s3://texts/none.txt", "d.jsonl", 1, "s3://texts/none.txt: no such bucket or object"),
        (
            "s3://texts/none",
            "d.jsonl",
            2,
            "cannot tell the format of 's3://texts/none' from its name",
        ),
        (
            "texts.txt",
            "s3://elsewhere/d.jsonl",
            1,
            "s3://elsewhere/d.jsonl: no such bucket or object",
        ),
        ("texts.txt", "s3://texts", 2, "has no name; use s3://texts/dump.jsonl"),
        (
            "texts.txt",
            "s3://texts/d.json",
            2,
            "'s3://texts/d.json' cannot be a document; use .jsonl",
        ),
    ],
)
def test_unusable_inputs_and_outputs_in_stores_are_refused(
    folder, capsys, source, output, code, message
):
    assert write(source, output) == code
    assert message in capsys.readouterr().err


def test_actors_and_tasks_share_no_store(folder, capsys):
    assert write("texts.txt", "s3://texts/d.jsonl", "--sbatch", "4") == 2
    assert "the tasks of an array cannot share 's3://texts/d.jsonl'" in capsys.readouterr().err


def test_the_network_is_allowed_to_the_scheme_that_is_named(folder, monkeypatch):
    """What forbids Hugging Face the network is lifted for hf:// alone."""
    seen = []

    def note(order, on_progress, **options):
        seen.append(os.environ.get("HF_HUB_OFFLINE"))
        return Summary()

    monkeypatch.setattr(request, "write_remote_dump", note)
    for output in ("s3://texts/d.jsonl", "hf://datasets/a/b/d.jsonl"):
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
        assert write("texts.txt", output) == 0
    assert seen == ["1", None]
