"""One point of a study in this process: what `rloo run` does, quietly, as a part of the study's run."""

import resource
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console as RichConsole

from pipelines import environment
from pipelines.config import load_settings
from pipelines.console import Console
from pipelines.evidence import RECORDS, Evidence, Place
from pipelines.outcome import directly
from pipelines.plan import Selection
from pipelines.process import log_file, sigterm_raises
from pipelines.records import Record
from pipelines.runner import in_words, prepared

GIB = 1 << 30


@dataclass(frozen=True)
class Errand:
    """What a process is sent for.

    Args:
        name: The point's, or of an output that several points share.
        overrides: What to run, `paths.root` among them.
        until: The last stage.
        record: Name of the run's record.
        parent: Key of the study's run.
        tags: For MLflow.
    """

    name: str
    overrides: tuple[str, ...]
    until: str
    record: str
    parent: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Returned:
    """What a process came back with.

    Args:
        name: The errand's.
        fingerprints: Of each finished stage, by stage.
        computed: The stages that were not there before.
        seconds: Wall time.
        memory: Peak resident memory of the process, GiB.
        error: Why it failed; "" if it did not.
    """

    name: str
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    seconds: float = 0.0
    memory: float = 0.0
    error: str = ""


def run_point(errand: Errand) -> Returned:
    """Run the stages of a point that are not there yet. Errors are returned, not raised.

    A point that was interrupted goes on from its last checkpoint, in its MLflow run.
    """
    started = time.monotonic()
    settings = load_settings(errand.overrides)
    root = Path(settings.paths.root)
    environment.prepare(root)
    log = root / "logs" / "studies" / f"{errand.record}.log"
    with sigterm_raises(), log_file(log):
        try:
            place = Place(errand.record, errand.name, errand.parent, dict(errand.tags))
            evidence = Evidence.load(root, root / RECORDS / errand.record)
            earlier = Record(errand.record, evidence) if evidence else None
            selection = Selection(until=errand.until)
            with log.open("a", encoding="utf-8") as file:
                console = Console(RichConsole(file=file, highlight=False, width=120))
                with prepared(settings, errand.overrides, selection, console, resume=earlier, place=place) as job:
                    job.run(directly)
            outcomes = job.executor.outcomes
            return Returned(
                errand.name,
                {name: outcome.directory.name for name, outcome in outcomes.items()},
                tuple(name for name, outcome in outcomes.items() if not outcome.reused),
                time.monotonic() - started,
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
            )
        except Exception as error:
            with log.open("a", encoding="utf-8") as file:
                file.write(traceback.format_exc())
            return Returned(errand.name, seconds=time.monotonic() - started, error=in_words(error, root))
