"""One study, from its points to its results: what several points share first, then the points, then the page.

What is in the store already is not started; a point that fails is told and sinks no other.
"""

import fcntl
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config_errors import Refused
from pipelines.config_overrides import without_root
from pipelines.console import Console
from pipelines.digests import sha256_of_text
from pipelines.evidence import FINISHED, RECORDS, Evidence
from pipelines.store import Store
from pipelines.studies.definition import Definition
from pipelines.studies.point import Errand, Returned
from pipelines.studies.points import Point, finished, shared
from pipelines.studies.progress import Progress

if TYPE_CHECKING:
    from pipelines.studies.tracking import StudyRun

Make = Callable[[Sequence[Errand]], Iterator[Returned]]
"""Makes errands side by side, and gives them back in the order in which they end."""


@dataclass
class Conduct:
    """A study in progress.

    Args:
        study: What is studied.
        points: All of it.
        run: The study's own run.
        console: What a person sees.
        progress: How far it is.
        on_progress: Is told whenever a point has come back.
        returned: What became of each point, by its name.
    """

    study: Definition
    points: Sequence[Point]
    run: "StudyRun"
    console: Console
    progress: Progress
    on_progress: Callable[[], None] = lambda: None
    returned: dict[str, Returned] = field(default_factory=dict)

    def make(self, make: Make) -> dict[str, Returned]:
        """Compute what is not there; what became of each point, by its name."""
        broken = self._make_shared(make)
        errands = {}
        for point in self.points:
            found = self._broken(point, broken) or self._finished(point)
            if found is None:
                errands[point.name] = self._errand(point)
            else:
                self._note(found)
        for found in make(list(errands.values())):
            self._note(found)
        return self.returned

    def _make_shared(self, make: Make) -> dict[str, str]:
        """Wave by wave; why it failed, by the identity of what could not be made."""
        broken: dict[str, str] = {}
        for wave in shared(self.points):
            errands = {}
            for identity, point in wave.items():
                stage = identity.partition(" ")[0]
                if self._plan(point, stage) is None and not self._broken(point, broken):
                    errands[f"{stage}, shared ({point.name})"] = identity
            if errands:
                self.console.line(f"shared: {', '.join(errands)}")
            makers = {name: wave[identity] for name, identity in errands.items()}
            self._share(errands, 0)
            for place, found in enumerate(make([self._errand(point, name) for name, point in makers.items()]), start=1):
                self._share(errands, place)
                if found.error:
                    broken[errands[found.name]] = f"{found.name}: {found.error}"
                    self.console.error(broken[errands[found.name]])
                else:
                    self.console.line(f"{found.name}: {found.seconds:.0f} s")
        self._share({}, 0)
        return broken

    def _share(self, errands: Mapping[str, str], made: int) -> None:
        """Tell how many of a wave's shared outputs are made."""
        stage = next(iter(errands), "").partition(",")[0]
        self.progress.sharing = f"{stage}: {made} of {len(errands)}" if stage else ""
        self._tell()

    def _tell(self) -> None:
        self.run.progress(str(self.progress))
        self.on_progress()

    def _broken(self, point: Point, broken: dict[str, str]) -> Returned | None:
        wanting = [f"{stage} {point.identity(stage)}" for stage in point.stages]
        reason = next((broken[each] for each in wanting if each in broken), None)
        return Returned(point.name, error=reason) if reason else None

    def _finished(self, point: Point) -> Returned | None:
        """A point that is in the store, and whose own run has ended well and was of these very outputs.

        A study whose file was changed and changed back has records of other settings; made again, all is reused.
        """
        fingerprints = self._plan(point, point.until)
        evidence = Evidence.load(self.run.root, self.run.root / RECORDS / self._record(point.name))
        if fingerprints is None or evidence is None or evidence.state.status != FINISHED:
            return None
        recorded = {note["stage"]: note["fingerprint"] for note in evidence.state.notes}
        return Returned(point.name, fingerprints) if recorded == fingerprints else None

    def _plan(self, point: Point, until: str) -> dict[str, str] | None:
        return finished(point, Store(self.run.root), until)

    def _errand(self, point: Point, shared_name: str = "") -> Errand:
        name = shared_name or point.name
        until = name.partition(",")[0] if shared_name else point.until
        tags = {"study": self.study.name, "profile": self.study.profile, "seed": str(point.seed)}
        tags |= {"shared": until} if shared_name else {f"axis.{axis}": value for axis, value in point.cell.items()}
        return Errand(name, point.overrides, until, self._record(name), self.run.key, tags)

    def _record(self, name: str) -> str:
        """A record's name: the study's, and the point's in letters that any file system takes."""
        return f"{self.run.evidence.directory.name}.{_safe(name)}.{sha256_of_text(name)[:6]}"

    def _note(self, found: Returned) -> None:
        self.returned[found.name] = found
        self.progress.note(found)
        if found.error:
            self.console.error(f"{found.name}: {found.error}")
        elif found.computed:
            self.console.line(f"{found.name}: {found.seconds:.0f} s, {found.memory:.1f} GiB   ({self.progress})")
        self._tell()


def record_name(study: Definition, overrides: Sequence[str]) -> str:
    """The same for the same study, profile and overrides, however many seeds: it is gone on with, and added to.

    A file of one's own keeps its ending, so that it is told from a study of conf/study.
    """
    typed = sorted(without_root(overrides))
    mark = f"-{sha256_of_text(repr(typed))[:6]}" if typed else ""
    return f"study-{_safe(Path(study.file).name)}-{_safe(study.profile)}{mark}"


def _safe(name: str) -> str:
    """A name in letters that any file system takes, not too long."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", name).strip("-.")[:80]


@contextmanager
def only_once(root: Path, record: str) -> Iterator[None]:
    """Hold a study's lock; the kernel frees it when the process ends, however it ends.

    Raises:
        Refused: If another process holds it.
    """
    path = root / "locks" / record
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"{record} is being computed by another process in {root}; wait for it, or stop it") from None
        yield
