"""encode_corpus on Dask: killed workers and commands, Ctrl-C, encoders in tasks of users, and errors."""

import dataclasses
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import corpus_kills
import needs
from conftest import ROOT, mha, write_tiny_model
from corpus_kills import contents, write_corpus
from test_cli import COMMAND, fails, ok

pytestmark = needs.installed("pyarrow", "distributed")
LIMIT = 60  # seconds that a test waits for a process


@pytest.fixture(scope="module")
def client():
    from mha_core.corpus import on_dask

    with on_dask.connected(workers=2, port=0) as client:
        client.wait_for_workers(2)
        yield client


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with a model and a corpus, and what encodes it in one process."""
    folder = tmp_path_factory.mktemp("corpus")
    write_tiny_model(folder / "model")
    write_corpus(folder / "corpus", count=800)
    corpus_kills.encode(None, folder / "corpus", folder / "quiet", folder / "model")
    return folder


@pytest.fixture
def quiet(given):
    return contents(given / "quiet")


def encode(client, given, out, **options):
    options = {"column": "text", "id": "id", "part_rows": corpus_kills.PART_ROWS, "model": given / "model"} | options
    return mha.encode_corpus(client, given / "corpus", out, options.pop("model"), **options)


def wait_until(condition):
    """Wait for a condition; there is no event to wait for in another process."""
    deadline = time.monotonic() + LIMIT
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


# the same as in one process


def test_workers_write_what_one_process_writes(client, given, quiet, tmp_path):
    report = encode(client, given, tmp_path / "out")
    assert contents(tmp_path / "out") == quiet
    assert (report.texts, report.parts, report.workers, report.reused) == (800, 20, 2, 0)
    assert encode(client, given, tmp_path / "out").reused == 800


def test_a_worker_that_is_killed_changes_nothing(client, given, quiet, tmp_path):
    pids = client.run(os.getpid)
    victims = list(pids.values())[:1]

    def load(path=str(given / "model"), victims=tuple(victims), mark=str(tmp_path / "killed")):
        if os.getpid() in victims and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return mha.TextEncoder.from_pretrained(path)

    encode(client, given, tmp_path / "once", model=partial(slow, load))
    assert (tmp_path / "killed").exists()
    assert contents(tmp_path / "once") == quiet
    client.wait_for_workers(2)


def slow(load):
    """Load a model, long enough for both workers to begin."""
    threading.Event().wait(0.3)
    return load()


def counted(path, model):
    """Load a model, and leave a mark that says so."""
    with (Path(path) / f"{os.getpid()} {time.monotonic_ns()}").open("w"):
        return mha.TextEncoder.from_pretrained(model)


def test_a_model_is_loaded_once_in_each_process(client, given, tmp_path):
    (tmp_path / "loaded").mkdir()
    encode(client, given, tmp_path / "out", model=partial(counted, str(tmp_path / "loaded"), str(given / "model")))
    marks = [name.split()[0] for name in os.listdir(tmp_path / "loaded")]
    assert 1 <= len(set(marks)) <= 2
    assert len(marks) <= len(set(marks)) + 1, "and once more by the worker that describes it"


def test_tasks_are_made_as_others_end(client):
    from mha_core.corpus import on_dask

    read = 0

    def items():
        nonlocal read
        while read < 100:
            read += 1
            yield read

    found = []
    for result in on_dask.run(client, divmod, 7, items()):
        found.append(result)
        assert read - len(found) <= 4, "two for each of two threads"
    assert sorted(found) == sorted(divmod(7, at) for at in range(1, 101))


def test_the_error_of_a_task_ends_the_run(client, given, tmp_path):
    write_tiny_model(tmp_path / "model")
    (tmp_path / "x.txt").write_bytes(b"a\n" * 700 + b"\xff\n" + b"a\n" * 700)
    with pytest.raises(mha.BadText, match=r"x\.txt, line 701: not valid UTF-8"):
        mha.encode_corpus(client, tmp_path / "x.txt", tmp_path / "out", tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        mha.encode_corpus(client, tmp_path / "*.csv", tmp_path / "other", tmp_path / "model", column="a")
    assert contents(tmp_path / "out").keys() <= {"_manifest.json", "part-00000.parquet", "part-00002.parquet"}


def test_a_worker_with_another_model_is_found(given, tmp_path):
    from mha_core.corpus.job import Wanted, describe, encode_part
    from mha_core.corpus.plan import Part

    facts, _ = describe(partial(mha.TextEncoder.from_pretrained, given / "model"), Wanted())
    other = write_tiny_model(tmp_path / "other")
    (other / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    load = partial(mha.TextEncoder.from_pretrained, other)
    assert describe(load, Wanted())[0].sha256 != facts.sha256
    job = job_of(tmp_path, model=load, model_sha256="0" * 64)
    with pytest.raises(
        mha.CorpusError, match=r"the model of this worker differs from that of the manifest: sha256 [0-9a-f]{64}, 000"
    ):
        encode_part(job, Part("part-0.parquet", (), 0, 0))


def job_of(folder, **changed):
    from mha_core.corpus.job import Job
    from mha_core.corpus.rows import Columns

    job = Job(
        model=None,
        model_sha256="",
        folder=folder,
        base=folder,
        columns=Columns(),
        id_type="int64",
        prompt="",
        truncate_dim=None,
        normalize=None,
        precision="float32",
        skip_invalid=False,
        digest="",
    )
    return dataclasses.replace(job, **changed)


# encoders in tasks of users


def test_an_encoder_maps_the_partitions_of_a_bag_and_of_a_data_frame(client, given):
    import dask.bag
    import dask.dataframe
    import pandas

    encoder = mha.TextEncoder.from_pretrained(given / "model", backend="numpy")
    texts = [f"a bird {word}" for word in corpus_kills.WORDS]
    expected = encoder.encode(texts)
    bag = dask.bag.from_sequence(texts, npartitions=3).map_partitions(encoder.encode)
    np.testing.assert_allclose(np.stack(client.compute(bag).result()), expected, rtol=0, atol=1e-6)
    frame = dask.dataframe.from_pandas(pandas.DataFrame({"text": texts}), npartitions=2)
    vectors = frame.map_partitions(vectors_of, encoder, meta=pandas.DataFrame({at: np.zeros(0, np.float32) for at in range(8)}))
    np.testing.assert_allclose(client.compute(vectors).result().to_numpy(), expected, rtol=0, atol=1e-6)


def vectors_of(frame, encoder):
    import pandas

    return pandas.DataFrame(encoder.encode(list(frame["text"])), index=frame.index)


def test_workers_have_as_many_threads_as_dask_gives_them(client):
    from mha_numpy.cores import num_threads

    assert set(client.run(num_threads).values()) == {1}


# processes that are stopped


def start(given, out, *more):
    """Start the command, which hears Ctrl-C even if this process ignores it, as one in the background of a shell does."""
    command = [COMMAND, "encode", given / "corpus", "--column", "text", "-m", given / "model", "-o", out, *more]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # not preexec_fn, for which JAX warns of a fork
    try:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, start_new_session=True, cwd=ROOT, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_that_is_killed_goes_on_when_it_is_repeated(given, quiet, tmp_path):
    out = tmp_path / "out"
    process = corpus_kills.start(given / "corpus", out, given / "model")
    wait_until(lambda: any(out.glob("part-*")) or process.poll() is not None)
    corpus_kills.kill_all(process)
    assert corpus_kills.encode(None, given / "corpus", out, given / "model").reused > 0
    assert contents(out) == quiet


@pytest.mark.full
def test_ctrl_c_leaves_whole_parts_and_says_how_to_go_on(tmp_path, given):
    (tmp_path / "given").mkdir()
    (tmp_path / "given/model").symlink_to(given / "model")
    write_corpus(tmp_path / "given/corpus", count=200_000)
    out = tmp_path / "out"
    process = start(tmp_path / "given", out, "--workers", "2")
    wait_until(lambda: any(out.glob("part-*")) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, printed) == (130, "")
    lines = errors.splitlines()
    assert len(lines) == 2, errors
    assert lines[0].startswith("2 workers with 2 threads; dashboard: http://127.0.0.1:")
    assert lines[1].startswith("stopped: ")
    assert lines[1].endswith(f" of 200000 texts are done, and stay in {out}; run the same again to go on")
    assert not list(out.glob(".*")), "no unfinished file stays"


def test_two_clusters_have_two_dashboards(client, recwarn):
    from mha_core.corpus import on_dask

    taken = int(client.dashboard_link.split(":")[2].partition("/")[0])
    with on_dask.connected(workers=1, port=taken) as other:
        assert other.dashboard_link.startswith("http://127.0.0.1:")
        assert other.dashboard_link != client.dashboard_link
    assert not [each for each in recwarn.list if "already in use" in str(each.message)]


def test_a_run_ends_if_no_worker_is_left(monkeypatch):
    from mha_core.corpus import on_dask

    monkeypatch.setattr(on_dask, "_NO_WORKERS", 1)
    with on_dask.connected(workers=1, port=0) as own:
        own.cluster.scale(0)
        wait_until(lambda: not own.nthreads())
        with pytest.raises(mha.CorpusError, match="no worker has been left for 1 s: what is written stays; run the same again"):
            list(on_dask.run(own, pow, 2, [3]))


def test_a_scheduler_that_does_not_answer_between_two_tasks_is_named(client, monkeypatch):
    from mha_core.corpus import on_dask

    def refused():
        raise OSError("refused")

    monkeypatch.setattr(client, "nthreads", refused)
    with pytest.raises(mha.CorpusError, match=r"the scheduler at tcp:.* gave up \(refused\): .* run the same again to go on"):
        list(on_dask.run(client, pow, 2, [3]))


@pytest.mark.full
def test_a_scheduler_that_is_killed_is_named(given, tmp_path):
    import dask
    import distributed  # noqa: F401  its defaults, which would otherwise be dropped with the setting

    from mha_core.corpus import on_dask

    short = dask.config.set({"distributed.comm.timeouts.connect": "2s"})
    with cluster(tmp_path) as (process, address), short, on_dask.connected(scheduler=address) as client:
        results = on_dask.run(client, pow, 2, iter(range(10**6)))
        assert next(results) in (1, 2, 4, 8)
        corpus_kills.kill_all(process)
        with pytest.raises(mha.CorpusError, match=f"the scheduler at {address} gave up .*; run the same again to go on"):
            list(results)


@pytest.mark.full
def test_tls_of_dask_s_configuration_is_used(given, tmp_path, monkeypatch):
    """Scheduler, worker and command have one certificate, which signs itself; without it the command is turned away."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = {"CA_FILE": certificate}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        tls |= {f"{role}__KEY": key, f"{role}__CERT": certificate}
    for name, path in tls.items():
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{name}", str(path))
    with cluster(tmp_path, protocol="tls", security="Security(require_encryption=True)") as (_, address):
        assert address.startswith("tls://")
        options = ("--id", "id", "--scheduler", address)
        process = start(given, tmp_path / "out", *options)
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, errors
        np.testing.assert_allclose(vectors_in(tmp_path / "out"), vectors_in(given / "quiet"), rtol=0, atol=1e-6)
        monkeypatch.delenv("DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT")
        process = start(given, tmp_path / "other", *options)
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 1
        assert f"no scheduler answers at {address}: " in errors


def vectors_in(folder):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(folder).column("vector").to_pylist()


CLUSTER = """
from distributed import LocalCluster, Security

if __name__ == "__main__":
    options = {{"protocol": {protocol!r}, "security": {security}, "dashboard_address": None}}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@contextmanager
def cluster(folder, protocol="tcp", security="None"):
    """Yield the process of a scheduler with one worker, and its address."""
    (folder / "cluster.py").write_text(CLUSTER.format(protocol=protocol, security=security))
    python = [needs.sys.executable, folder / "cluster.py"]
    process = subprocess.Popen(python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        corpus_kills.kill_all(process)
        process.stdin.close()
        process.stdout.close()


# the command


def test_the_command_runs_workers_and_prints_where_to_watch_them(given, quiet, tmp_path):
    command = ("encode", given / "corpus", "--column", "text", "-m", given / "model", "-w", "2")
    process = start(given, tmp_path / "x.npy", "--workers", "1")
    printed, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    assert errors.startswith("1 worker with 1 threads; dashboard: http://127.0.0.1:")
    assert printed.startswith(f"wrote {tmp_path / 'x.npy'}: 800 vectors of 8 numbers\n800 texts in ")
    ok(*command[:-2], "-o", tmp_path / "y.npy")
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy"), rtol=0, atol=1e-6)
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "y.npy"], "the parts are removed"


def test_a_scheduler_that_does_not_answer_is_named(given, tmp_path):
    import dask
    import distributed  # noqa: F401  its defaults, which would otherwise be dropped with the setting

    with dask.config.set({"distributed.comm.timeouts.connect": "100ms"}):
        message = fails(
            1,
            "encode",
            given / "corpus",
            "--column",
            "text",
            "-m",
            given / "model",
            "-o",
            "x",
            "--scheduler",
            "tcp://127.0.0.1:1",
        )
    assert "no scheduler answers at tcp://127.0.0.1:1: Timed out trying to connect" in message


@pytest.mark.parametrize("library", ["dask", "distributed"])
def test_without_dask_the_command_says_what_to_install(given, monkeypatch, library):
    monkeypatch.setitem(needs.sys.modules, library, None)
    message = fails(1, "encode", given / "corpus", "--column", "text", "-m", given / "model", "-o", "x", "-w", "1")
    assert f"workers need {library}, which is not installed: pip install 'mha-core[dask]'" in message
