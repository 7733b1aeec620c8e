"""encode_corpus on Dask: killed workers and commands, Ctrl-C, encoders in tasks of users, and errors."""

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import corpus_kills
import needs
import numpy as np
import pytest
from command import COMMAND, fails, run
from corpus_kills import contents, table, write_corpus
from processes import printed
from project import ROOT
from tiny_models import WORDS, close, edit, write_tiny_model

import mha_text as mt
from mha_text.corpus import on_dask
from mha_text.corpus.job import describe, encode_part
from mha_text.corpus.plan import Part

pytestmark = needs.installed("pyarrow", "distributed")
LIMIT = 60  # seconds that a test waits for a process


@pytest.fixture(scope="module")
def client():
    with on_dask.connected(workers=2, port=0) as client:
        client.wait_for_workers(2)
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, a corpus, and its vectors as one process encodes them."""
    folder = tmp_path_factory.mktemp("corpus")
    write_tiny_model(folder / "model")
    write_corpus(folder / "corpus", count=800)
    corpus_kills.encode(None, folder / "corpus", folder / "quiet", folder / "model")
    return folder


@pytest.fixture
def quiet(folder):
    return contents(folder / "quiet")


def encode(client, folder, out, model=None):
    return corpus_kills.encode(client, folder / "corpus", out, model or folder / "model")


def patience(time):
    """Set how long Dask waits for a scheduler."""
    import dask
    import distributed  # noqa: F401  its defaults, which would otherwise be dropped with the setting

    return dask.config.set({"distributed.comm.timeouts.connect": time})


def wait_until(condition):
    """Wait for a condition; there is no event to wait for in another process."""
    deadline = time.monotonic() + LIMIT
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.01)


# the same as in one process


def counted(path, model):
    """Load a model, and leave a mark that says so."""
    (Path(path) / f"{os.getpid()} {time.monotonic_ns()}").touch()
    return mt.TextEncoder.from_pretrained(model)


def test_workers_write_what_one_process_writes_and_each_loads_the_model_once(client, folder, quiet, tmp_path):
    (tmp_path / "loaded").mkdir()
    model = partial(counted, str(tmp_path / "loaded"), str(folder / "model"))
    report = encode(client, folder, tmp_path / "out", model)
    assert contents(tmp_path / "out") == quiet
    assert (report.texts, report.parts, report.workers, report.reused) == (800, 20, 2, 0)
    marks = [name.split()[0] for name in os.listdir(tmp_path / "loaded")]
    assert 1 <= len(set(marks)) <= 2
    assert len(marks) <= len(set(marks)) + 1, "and once more by the worker that describes it"
    assert encode(client, folder, tmp_path / "out").reused == 800


def die_once(mark):
    """Make this process die as it writes a part, unless another one did."""
    from mha_text.corpus import job

    write_part = job.write_part

    def dying(*args, **options):
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return write_part(*args, **options)

    job.write_part = dying


def test_a_worker_that_is_killed_changes_nothing(client, folder, quiet, tmp_path):
    client.run(die_once, tmp_path / "killed")
    encode(client, folder, tmp_path / "once")
    assert (tmp_path / "killed").exists()
    assert contents(tmp_path / "once") == quiet
    client.wait_for_workers(2)


def test_tasks_are_made_as_others_end(client):
    read = 0

    def items():
        nonlocal read
        while read < 100:
            read += 1
            yield read

    results = []
    for result in on_dask.run(client, divmod, 7, items()):
        results.append(result)
        assert read - len(results) <= 4, "two for each of two threads"
    assert sorted(results) == sorted(divmod(7, at) for at in range(1, 101))


def test_the_error_of_a_task_ends_the_run(client, folder, tmp_path):
    write_tiny_model(tmp_path / "model")
    (tmp_path / "x.txt").write_bytes(b"a\n" * 700 + b"\xff\n" + b"a\n" * 700)
    with pytest.raises(mt.BadText, match=r"x\.txt, line 701: not valid UTF-8"):
        mt.encode_corpus(client, tmp_path / "x.txt", tmp_path / "out", tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        mt.encode_corpus(client, tmp_path / "*.csv", tmp_path / "other", tmp_path / "model", column="a")
    assert contents(tmp_path / "out").keys() <= {"_manifest.json", "part-00000.parquet", "part-00002.parquet"}


def test_a_worker_with_another_model_is_found(folder, tmp_path):
    other = write_tiny_model(tmp_path / "other")
    edit(other / "sentence_bert_config.json", max_seq_length=7)
    load, load_other = (partial(mt.TextEncoder.from_pretrained, path) for path in (folder / "model", other))
    assert len({describe(each, (None, None, None, None)).facts.sha256 for each in (load, load_other)}) == 2
    options = SimpleNamespace(column=None, id=None, prompt=None)
    job = SimpleNamespace(folder=tmp_path, options=options, layout=None, model=load_other, model_sha256="0" * 64)
    message = r"the model of this worker differs from that of the manifest: sha256 [0-9a-f]{64}, 000"
    with pytest.raises(mt.CorpusError, match=message):
        encode_part(job, Part("part-0.parquet", (), 0, 0))


# encoders in tasks of users


def test_an_encoder_maps_the_partitions_of_a_bag_and_is_an_argument_of_tasks(client, folder):
    import dask.bag

    encoder = mt.TextEncoder.from_pretrained(folder / "model", backend="numpy")
    texts = [f"a bird {word}" for word in WORDS[4:]]
    bag = dask.bag.from_sequence(texts, npartitions=3).map_partitions(encoder.encode)
    for vectors in (np.stack(client.compute(bag).result()), client.submit(mt.TextEncoder.encode, encoder, texts).result()):
        close(vectors, encoder.encode(texts))


def test_workers_have_as_many_threads_as_dask_gives_them(client):
    from mha_numpy.cores import num_threads

    assert set(client.run(num_threads).values()) == {1}


# processes that are stopped


def arguments(folder, out, *more):
    return ["encode", folder / "corpus", "--column", "text", "-m", folder / "model", "-o", out, *more]


def start(folder, out, *more):
    """Start the command, which hears Ctrl-C even if this process ignores it, as one in the background of a shell does."""
    command = [COMMAND, *arguments(folder, out, *more)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # not preexec_fn, for which JAX warns of a fork
    try:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, start_new_session=True, cwd=ROOT, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


def finish(process, code=0):
    """Return what a process prints, and its errors."""
    printed, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, errors
    return printed, errors


@pytest.mark.parametrize("kill", [corpus_kills.kill_all, pytest.param(subprocess.Popen.kill, marks=pytest.mark.full)])
def test_a_command_that_is_killed_goes_on_when_it_is_repeated(folder, quiet, tmp_path, kill):
    """With its workers, or alone: they end once they miss the scheduler."""
    out = tmp_path / "out"
    process = corpus_kills.start(folder / "corpus", out, folder / "model")
    wait_until(lambda: any(out.glob("part-*")) or process.poll() is not None)
    kill(process)
    process.wait()  # for the system to release the folder
    assert corpus_kills.encode(None, folder / "corpus", out, folder / "model").reused > 0
    assert contents(out) == quiet
    corpus_kills.kill_all(process)


@pytest.mark.full
def test_ctrl_c_leaves_whole_parts_and_says_how_to_go_on(tmp_path, folder):
    (tmp_path / "model").symlink_to(folder / "model")
    write_corpus(tmp_path / "corpus", count=200_000)
    out = tmp_path / "out"
    process = start(tmp_path, out, "--workers", "2")
    wait_until(lambda: any(out.glob("part-*")) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = finish(process, code=130)
    assert printed == ""
    first, second = errors.splitlines()
    assert first.startswith("2 workers with 2 threads; dashboard: http://127.0.0.1:") and second.startswith("stopped: ")
    assert second.endswith(f" of 200000 texts are done, and stay in {out}; run the same again to go on")
    assert not list(out.glob(".*")), "no unfinished file stays"


def test_another_cluster_has_another_dashboard_and_a_run_ends_if_there_is_no_worker(client, monkeypatch, recwarn):
    monkeypatch.setattr(on_dask, "_NO_WORKERS", 1)
    taken = int(client.dashboard_link.split(":")[2].partition("/")[0])
    with on_dask.connected(workers=0, port=taken) as other:
        assert other.dashboard_link.startswith("http://127.0.0.1:")
        assert other.dashboard_link != client.dashboard_link
        assert not [each for each in recwarn.list if "already in use" in str(each.message)]
        with pytest.raises(mt.CorpusError, match="no worker has been left for 1 s: what is written stays; run the same again"):
            list(on_dask.run(other, pow, 2, [3]))


def test_a_cluster_leaves_no_variables_in_the_environment_of_its_process(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with on_dask.connected(workers=1, port=0):
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ.items() - before.items() <= {("__DASK_PARENT_PID", str(os.getpid()))}


def test_a_scheduler_that_does_not_answer_between_two_tasks_is_named(client, monkeypatch):
    def refused():
        raise OSError("refused")

    monkeypatch.setattr(client, "nthreads", refused)
    with pytest.raises(mt.CorpusError, match=r"the scheduler at tcp:.* gave up \(refused\): .* run the same again to go on"):
        list(on_dask.run(client, pow, 2, [3]))


@pytest.mark.full
def test_a_scheduler_that_is_killed_is_named(folder, tmp_path):
    with cluster(tmp_path) as (process, address), patience("2s"), on_dask.connected(scheduler=address) as client:
        results = on_dask.run(client, pow, 2, iter(range(10**6)))
        assert next(results) in (1, 2, 4, 8)
        corpus_kills.kill_all(process)
        with pytest.raises(mt.CorpusError, match=f"the scheduler at {address} gave up .*; run the same again to go on"):
            list(results)


@pytest.mark.full
def test_tls_of_dask_s_configuration_is_used(folder, tmp_path, monkeypatch):
    """Scheduler, worker and command have one certificate, which signs itself; without it the command is turned away."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    printed(request, "-keyout", key, "-out", certificate)
    tls = {"CA_FILE": certificate}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        tls |= {f"{role}__KEY": key, f"{role}__CERT": certificate}
    for name, path in tls.items():
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{name}", str(path))
    with cluster(tmp_path, protocol="tls", security="Security(require_encryption=True)") as (_, address):
        assert address.startswith("tls://")
        options = ("--id", "key", "--scheduler", address)
        finish(start(folder, tmp_path / "out", *options))
        close(*(table(each)["vector"].to_pylist() for each in (tmp_path / "out", folder / "quiet")))
        monkeypatch.delenv("DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT")
        _, errors = finish(start(folder, tmp_path / "other", *options), code=1)
        assert f"no scheduler answers at {address}: " in errors


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


def test_the_command_runs_on_a_cluster_and_prints_where_to_watch_it(client, folder, tmp_path):
    done = run(*arguments(folder, tmp_path / "x.npy", "--scheduler", client.scheduler.address))
    assert done.stderr == f"2 workers with 2 threads; dashboard: {client.dashboard_link}\n"
    assert done.stdout.startswith(f"wrote {tmp_path / 'x.npy'}: 800 vectors of 8 numbers\n800 texts in ")
    run(*arguments(folder, tmp_path / "y.npy"))
    close(np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy"))
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "y.npy"], "the parts are removed"


def test_a_scheduler_that_does_not_answer_is_named(folder):
    with patience("100ms"):
        message = fails(1, *arguments(folder, "x", "--scheduler", "tcp://127.0.0.1:1"))
    assert "no scheduler answers at tcp://127.0.0.1:1: Timed out trying to connect" in message


@pytest.mark.parametrize("library", ["dask", "distributed"])
def test_without_dask_the_command_says_what_to_install(folder, monkeypatch, library):
    monkeypatch.setitem(needs.sys.modules, library, None)
    message = fails(1, *arguments(folder, "x", "-w", "1"))
    assert f"workers need {library}, which is not installed: pip install 'mha-text[dask]'" in message
