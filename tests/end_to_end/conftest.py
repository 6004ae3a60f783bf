"""Services and a full run on them, once for all tests that only look."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.end_to_end.services import SMALL, Machine, machine

SMOLLM2 = [  # one update a stage, two completions a prompt, two prompts
    "run", "experiment=hh_smollm2", "--no-prefect", "data.max_rows=24", "sft.batch_size=4", "sft.epochs=0.1",
    "reward_model.batch_size=4", "reward_model.epochs=0.1", "algorithm.steps=1", "algorithm.rollout_batch_size=4",
    "algorithm.eval_prompts=2", "algorithm.max_new_tokens=8", "evaluation.prompts=2", "evaluation.max_new_tokens=16",
]  # fmt: skip


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs of SmolLM2 are started, so that a second one finds the first one's data and SFT."""
    return tmp_path_factory.mktemp("smollm2")


@pytest.fixture(scope="session")
def calls() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that keeps what is posted to it: its address, and the posts."""
    posted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret-in-the-address", posted
    server.shutdown()


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory, calls: tuple[str, list[str]]) -> Iterator[Machine]:
    """Running services on an empty run root, with a webhook."""
    with machine(tmp_path_factory.mktemp("services"), environment={"RLOO_WEBHOOK": calls[0]}) as services:
        yield services


@pytest.fixture(scope="session")
def full(here: Machine) -> str:
    """The id of a full run of the pipeline, started from a deployment."""
    run = here.start("full", experiment="tiny", overrides=SMALL)
    here.wait_for(run, "COMPLETED", "FAILED", "CRASHED")
    return run
