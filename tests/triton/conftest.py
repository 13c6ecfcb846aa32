# SPDX-License-Identifier: Apache-2.0
"""The programs of triton/, trained models, and the servers that many modules share."""

import dataclasses
import importlib.util
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from dlrm.model.weights import DlrmCheckpoint
from dlrm.serve.export import DlrmExport
from preproc.clicks.rules import ClicksSemantics
from recsys.data.sequences.titles import write_titles
from recsys.serve.client.connection import Endpoint
from recsys.serve.server.models import Models
from recsys.serve.server.process import ServerSettings, TritonServer
from tests import harness
from tests.bert4rec import conftest as bert4rec
from tests.dlrm.conftest import dataset, make_program  # noqa: F401  (a fixture)
from tests.preproc.clicks.rows import good_text, run, without_labels
from tests.recsys.serve.checkpoints import dlrm_checkpoint, logits_of
from tests.triton.tiny_model import write_version

MAX_BATCH_SIZE = 512
"""Most rows of the served DLRM."""
OF_MODELS = {"bert4rec_served", "dlrm_served", "examples", "formats_served", "page_served"}
OF_MODELS |= {"fitted_clicks_served", "raw_rows_served"}
"""Files whose tests share trained models."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Leaves the trained models to one of two processes, so that they are made once."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "models" if Path(file).stem.removeprefix("test_") in OF_MODELS else file

    return Scheduling(config, log)


def script(name):
    """Imports a script of triton/, which is no package."""
    spec = importlib.util.spec_from_file_location(
        f"triton_{name}", harness.REPOSITORY / f"triton/{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def client(arguments):
    """Runs triton/client.py in this process; returns its exit status."""
    return script("client").main(["client", *arguments])


def deployer(repository, *arguments):
    """Runs triton/deployer.py in this process; returns its exit status."""
    return harness.call(script("deployer"), f"--repository={repository}", *arguments)


def deploy(checkpoint, repository, *arguments):
    """Deploys a checkpoint, as the deployer's command line does, in this process."""
    assert deployer(repository, f"--checkpoint={checkpoint}", *arguments) == 0


@pytest.fixture
def ask(server, capsys):
    """Runs triton/client.py on the server of all tests; returns what it prints."""

    def run(*arguments, status=0, url=None):
        capsys.readouterr()
        assert client([f"--url={url or server.url}", *map(str, arguments)]) == status
        said = capsys.readouterr()
        return said.out + said.err if status else said.out

    return run


@pytest.fixture
def change(tmp_path, capsys):
    """Runs the deployer on a repository, by default `models`; returns what it prints."""

    def run(*arguments, status=0, repository=tmp_path / "models"):
        capsys.readouterr()
        done = deployer(repository, *arguments)
        said = capsys.readouterr()
        assert done == status, said.err
        return said.out + said.err

    return run


def replay(endpoint, file):
    """Sends the rows of a file for perf_analyzer; yields each request and its answer."""
    inputs = {tensor.name: tensor for tensor in endpoint.signature.inputs}
    (key, entries), *others = json.loads(file.read_text()).items()
    assert (key, others) == ("data", [])
    for entry in entries:
        request = {}
        for name, tensor in entry.items():
            assert set(tensor) == {"content", "shape"}
            values = np.array(tensor["content"], inputs[name].numpy_dtype)
            request[name] = values.reshape(1, *tensor["shape"])
        yield request, endpoint.predict(request)


class Server(TritonServer):
    """A ready server whose models come and go by explicit calls; it speaks both protocols.

    Args:
        folder: gets its repository and its log.
        settings: of the server.
    """

    def __init__(self, folder, **settings):
        self.repository = folder / "models"
        settings = ServerSettings(repository=self.repository, **{"grpc_port": 0} | settings)
        super().__init__(settings, folder / "log")
        self.wait_ready(300)

    def serve(self, name, checkpoint, *flags):
        """Deploys and loads a model, if no test did; returns its name."""
        if not (self.repository / name).exists():
            deploy(checkpoint, self.repository, f"--name={name}", *flags)
            self.load(name)
        return name

    def endpoint(self, model, protocol="http"):
        url = self.grpc_url if protocol == "grpc" else self.http_url
        return Endpoint(url, model, protocol=protocol)

    def is_ready(self, model, version=""):
        return self._ask("is_model_ready", model, str(version))

    def add_backend(self, name, model):
        """Adds a backend that is a `model.py` on the Python backend."""
        folder = Path(self._folder.name) / name
        folder.mkdir(exist_ok=True)
        shutil.copy2(model, folder / "model.py")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server for all tests that leave it alive; one model of it is there from the start."""
    folder = tmp_path_factory.mktemp("server")
    write_version(folder / "models", "tiny", 1, 2.0)
    with Server(folder, threads=1) as server:
        yield server
        server.stop(at_once=True)  # a channel that tritonclient keeps would delay it by 20 s


@pytest.fixture(scope="session")
def polled(tmp_path_factory):
    """A server that looks for new models and versions each second."""
    folder = tmp_path_factory.mktemp("polled")
    (folder / "models").mkdir()
    stopped = threading.Event()

    def look():
        models = Models(server)
        while not stopped.wait(0.1):
            models.look(1)
            models.end_loads()

    with Server(folder, poll_secs=1, threads=1) as server:
        looking = threading.Thread(target=look)
        looking.start()
        yield server
        stopped.set()
        looking.join()
        server.stop(at_once=True)


@pytest.fixture(scope="session")
def dlrm_run(dataset, tmp_path_factory):  # noqa: F811
    """A small DLRM, trained on a dataset that it can learn."""
    folder = tmp_path_factory.mktemp("dlrm")
    make_program(folder)(f"--dataset={dataset}", f"--save_checkpoint_path={folder / 'run'}")
    return folder / "run"


@pytest.fixture(scope="session")
def offline(dlrm_run):
    """Computes logits by the checkpoint of that DLRM."""
    model = DlrmCheckpoint.open(dlrm_run).load()
    return lambda request: logits_of(model, request)


@dataclasses.dataclass(frozen=True)
class Generations:
    """Models with the same inputs and other answers.

    Attributes:
        checkpoints: their folders.
        request: four rows.
        logits: [4, 1] answers of each model.
    """

    checkpoints: list[Path]
    request: dict[str, np.ndarray]
    logits: list[np.ndarray]

    def of(self, answers):
        """Returns the number of the model that gave each answer, each time it changes."""
        numbers = [
            next(
                i for i, logits in enumerate(self.logits) if np.allclose(answer, logits, atol=1e-6)
            )
            for answer in answers
        ]
        return [i for i, before in zip(numbers, [None, *numbers], strict=False) if i != before]


@pytest.fixture(scope="session")
def generations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generations")
    written = [
        dlrm_checkpoint(folder / str(width), top_mlp_sizes=[width, 1]) for width in (16, 24, 32)
    ]
    checkpoints = [checkpoint for checkpoint, _ in written]
    (request,) = DlrmExport(checkpoints[0]).example_requests(4, fixed_shapes=False)
    return Generations(checkpoints, request, [logits_of(model, request) for _, model in written])


RAW_MODEL = (
    "--embedding_dim=8",
    "--bottom_mlp_sizes=16,8",
    "--top_mlp_sizes=16,1",
    "--test_batch_size=512",
    "--max_steps=100",
)
RAW_RULES = {"frequency_limit": 2, "dictionary_days": "train", "bin_numerical": True}


def train_raw(text, folder, train_rows):
    """Prepares rows and trains on the first of them; returns the dataset and the run."""
    (folder / "log").write_bytes(text)
    rules = ClicksSemantics(**RAW_RULES, split_rows=(train_rows, 0, -1))
    run(folder / "log", folder / "dataset", semantics=rules)
    paths = f"--dataset={folder / 'dataset'}", f"--save_checkpoint_path={folder / 'run'}"
    program = make_program(folder)
    program(*paths, *RAW_MODEL)
    return folder / "dataset", folder / "run"


@dataclasses.dataclass(frozen=True)
class Clicks:
    """A DLRM that takes raw rows.

    Attributes:
        dataset: its dataset.
        run: its training.
        lines: lines of the test split, without labels.
    """

    dataset: Path
    run: Path
    lines: list[bytes]

    @property
    def flags(self):
        """Flags that deploy it with raw rows."""
        return ("--raw", f"--dataset={self.dataset}", "--split=test")


@pytest.fixture(scope="session")
def clicks(tmp_path_factory):
    text = good_text(1500, seed=5, vocabulary=60)
    trained = train_raw(text, tmp_path_factory.mktemp("clicks"), 1000)
    return Clicks(*trained, without_labels(text).splitlines()[1000:])


@pytest.fixture(scope="session")
def ratings(tmp_path_factory):
    """A dataset of ratings whose items have titles."""
    root = tmp_path_factory.mktemp("ratings")
    bert4rec.write_dataset(root, bert4rec.make_sequences())
    write_titles(root, [title(item) for item in range(1, bert4rec.NUM_ITEMS + 1)])
    return root


def title(item):
    """Returns the title of an item: with an accent, and with what HTML would read."""
    return f"Café <b>№</b> {item}"


@pytest.fixture(scope="session")
def bert4rec_run(ratings, tmp_path_factory):
    """A small BERT4Rec that learnt the order of the ratings."""
    return bert4rec.train(ratings, tmp_path_factory.mktemp("bert4rec"))


@pytest.fixture(scope="session")
def recommenders(server, bert4rec_run, ratings):
    """Names of that BERT4Rec with item numbers, with raw ids and titles, and exported."""
    exported = ("--format=torchscript", "--max_batch_size=16", "--warmup=4")
    return [
        server.serve("bert4rec", bert4rec_run),
        server.serve("named", bert4rec_run, f"--raw_ids={ratings}", "--titles"),
        server.serve("exported", bert4rec_run, *exported),
    ]
