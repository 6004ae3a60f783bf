"""What stages produced, kept by fingerprint below the run root; finished or not there at all.

    store/<stage>/<fingerprint>/   outputs and manifest.json; appears by one rename
    work/<stage>/<fingerprint>/    a stage that has not finished, with its checkpoints
    locks/<stage>-<fingerprint>    held while a stage is computed, so that two runs compute it once
    pruned/<stage>-<fingerprint>   when `rloo prune` removed an output

What is missing or damaged is noticed and reported, never trusted.
"""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from pipelines.digests import DigestCache, sha256_of, sha256_of_text, write_atomically
from rloo_core.files import fsync

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"  # not part of a finished stage
LOGS = "logs"  # kept beside the outputs, but not one of them: logs hold times, which never are the same twice
SCHEMA = 1


@dataclass(frozen=True)
class StoredFile:
    """Size in bytes, SHA-256, and time of change (ns) when it was published."""

    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True)
class Manifest:
    """The record of a finished stage."""

    stage: str
    fingerprint: str
    digest: str  # SHA-256 over the names and SHA-256s of the outputs
    parts: Mapping[str, Any]  # what the fingerprint was made from
    inputs: Mapping[str, Mapping[str, str]]  # {stage: {"fingerprint": ..., "digest": ...}}
    files: Mapping[str, StoredFile]
    summary: Mapping[str, float]  # what the stage returned
    created: str  # UTC, ISO 8601
    duration: float  # seconds
    versions: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None  # of the MLflow run that made it
    host: str = ""
    accepted: Mapping[str, Any] | None = None  # taken over after a code change: from which output, when, what changed
    schema: int = SCHEMA

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read `manifest.json`.

        Raises:
            ValueError: If it is damaged, or of another schema.
        """
        try:
            values = json.loads(text)
            values["files"] = {_safe(name): StoredFile(**file) for name, file in values["files"].items()}
            manifest = cls(**values)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a manifest: {error}") from error
        if manifest.schema != SCHEMA:
            raise ValueError(f"schema {manifest.schema}, expected {SCHEMA}")
        return manifest

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


class Store:
    """Finished stages below one run root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._digests = DigestCache(self.root / "cache")

    def path(self, stage: str, fingerprint: str) -> Path:
        """Where a finished stage lies, or would lie."""
        return self.root / "store" / stage / fingerprint

    def work(self, stage: str, fingerprint: str) -> Path:
        """The directory a stage works in; made if needed. It may hold what a killed run left."""
        path = self.root / "work" / stage / fingerprint
        path.mkdir(parents=True, exist_ok=True)
        return path

    def find(self, stage: str, fingerprint: str, verify: bool = False) -> tuple[Manifest | None, str]:
        """A finished stage whose outputs are all there.

        Args:
            stage: Its name.
            fingerprint: Its fingerprint.
            verify: Read and hash every file; otherwise only files whose time of change differs from the manifest's.

        Returns:
            (manifest, ""), or (None, reason): "" if nobody knows of one, "output pruned on ...", "output missing: ...",
            "output damaged: ...".
        """
        place = self.path(stage, fingerprint)
        if not place.is_dir():
            return None, self._pruned(stage, fingerprint)
        try:
            manifest = Manifest.from_json((place / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None, f"output missing: {MANIFEST}"
        except (OSError, ValueError):
            return None, f"output damaged: {MANIFEST}"
        if (manifest.stage, manifest.fingerprint) != (stage, fingerprint):
            return None, f"output damaged: {MANIFEST}"
        problem = next((p for n, f in manifest.files.items() if (p := self._problem(place / n, n, f, verify))), "")
        return (None, problem) if problem else (manifest, "")

    def manifest(self, stage: str, fingerprint: str) -> Manifest | None:
        """The record of a finished stage, whatever became of its outputs."""
        with suppress(OSError, ValueError):
            return Manifest.from_json((self.path(stage, fingerprint) / MANIFEST).read_text(encoding="utf-8"))
        return None

    def manifests(self, stage: str) -> list[Manifest]:
        """All readable manifests of a stage, newest first, whatever became of their outputs."""
        found = []
        for file in (self.root / "store" / stage).glob(f"*/{MANIFEST}"):
            with suppress(OSError, ValueError):
                found.append(Manifest.from_json(file.read_text(encoding="utf-8")))
        return sorted(found, key=lambda manifest: manifest.created, reverse=True)

    def publish(
        self,
        stage: str,
        fingerprint: str,
        *,
        parts: Mapping[str, Any],
        inputs: Mapping[str, Manifest],
        summary: Mapping[str, float],
        duration: float,
        versions: Mapping[str, str] | None = None,
        run_id: str | None = None,
        accepted: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Turn the work directory of a stage into its finished output, by one rename.

        Checkpoints are dropped after it: whoever is stopped before can still go on from them.
        An older output with this fingerprint is replaced; one with the same bytes stays, with a new manifest.

        Raises:
            ValueError: If the stage left nothing, or left links.
        """
        work = self.work(stage, fingerprint)
        (work / MANIFEST).unlink(missing_ok=True)
        files = _written_files(work)
        manifest = Manifest(
            stage=stage,
            fingerprint=fingerprint,
            digest=output_digest(files),
            parts=dict(parts),
            inputs={name: {"fingerprint": m.fingerprint, "digest": m.digest} for name, m in inputs.items()},
            files=files,
            summary=dict(summary),
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            duration=duration,
            versions=dict(versions or {}),
            run_id=run_id,
            host=socket.gethostname(),
            accepted=accepted,
        )
        earlier, _ = self.find(stage, fingerprint, verify=True)
        if earlier is not None and earlier.digest == manifest.digest:
            return _renewed(work, self.path(stage, fingerprint), manifest)
        write_atomically(work / MANIFEST, manifest.to_json())
        self._put_in_place(work, stage, fingerprint)
        shutil.rmtree(self.path(stage, fingerprint) / CHECKPOINTS, ignore_errors=True)
        return manifest

    def take_over(
        self, earlier: Manifest, fingerprint: str, parts: Mapping[str, Any], changed: Sequence[str]
    ) -> Manifest:
        """Let an output stand for another fingerprint, which differs in code that a person declared harmless.

        The files get a second name where the file system can, else they are copied. The manifest records it.

        Raises:
            OSError: If that is impossible.
        """
        stage = earlier.stage
        work = self.work(stage, f"{fingerprint}.accepted")
        shutil.rmtree(work)
        ignored = shutil.ignore_patterns(CHECKPOINTS)
        shutil.copytree(self.path(stage, earlier.fingerprint), work, copy_function=_link_or_copy, ignore=ignored)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        note = {"from": earlier.fingerprint, "at": now, "changed": list(changed)}
        manifest = replace(earlier, fingerprint=fingerprint, parts=dict(parts), accepted=note)
        (work / MANIFEST).unlink()
        write_atomically(work / MANIFEST, manifest.to_json())
        self._put_in_place(work, stage, fingerprint)
        return manifest

    def set_run(self, manifest: Manifest, run_id: str) -> Manifest:
        """Note the MLflow run that made a finished stage."""
        changed = replace(manifest, run_id=run_id)
        write_atomically(self.path(manifest.stage, manifest.fingerprint) / MANIFEST, changed.to_json())
        return changed

    def note_pruned(self, stage: str, fingerprint: str) -> None:
        """Note that an output is being removed, so that plans can say why it is not there."""
        write_atomically(self._note_of(stage, fingerprint), datetime.now(UTC).isoformat(timespec="milliseconds"))

    def discard_work(self, stage: str, fingerprint: str) -> None:
        """Remove what a killed run left, so that the stage starts anew (a forced run does)."""
        shutil.rmtree(self.root / "work" / stage / fingerprint, ignore_errors=True)

    @contextmanager
    def lock(self, stage: str, fingerprint: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the right to compute a stage; the kernel frees it when the process ends, however it ends.

        Args:
            stage: Its name.
            fingerprint: Its fingerprint.
            on_wait: Is told, in one line, that another run holds it.
        """
        path = self.root / "locks" / f"{stage}-{fingerprint}"
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait is not None:
                    on_wait(f"waiting: another run computes {stage} with the same settings")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _put_in_place(self, work: Path, stage: str, fingerprint: str) -> None:
        place = self.path(stage, fingerprint)
        place.parent.mkdir(parents=True, exist_ok=True)
        old = work.with_name(f"{work.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        work.rename(place)
        fsync(place.parent)
        shutil.rmtree(old, ignore_errors=True)
        self._note_of(stage, fingerprint).unlink(missing_ok=True)

    def _note_of(self, stage: str, fingerprint: str) -> Path:
        return self.root / "pruned" / f"{stage}-{fingerprint}"

    def _pruned(self, stage: str, fingerprint: str) -> str:
        with suppress(OSError):
            return f"output pruned on {self._note_of(stage, fingerprint).read_text(encoding='utf-8')[:10]}"
        return ""

    def _problem(self, path: Path, name: str, expected: StoredFile, verify: bool) -> str:
        try:
            state = path.stat()
        except OSError:
            return f"output missing: {name}"
        if state.st_size != expected.size:
            return f"output damaged: {name} has {state.st_size} bytes, not {expected.size}"
        if not verify and state.st_mtime_ns == expected.mtime_ns:
            return ""
        digest = sha256_of(path) if verify else self._digests.sha256(path)
        return "" if digest == expected.sha256 else f"output damaged: {name} has other content"


def _renewed(work: Path, place: Path, manifest: Manifest) -> Manifest:
    """Keep outputs that came out the same, so that whoever reads them goes on; only the manifest and logs are new."""
    if (work / LOGS).is_dir():
        shutil.rmtree(place / LOGS, ignore_errors=True)
        (work / LOGS).rename(place / LOGS)
    changed = {name: (place / name).stat().st_mtime_ns for name in manifest.files}
    files = {name: replace(file, mtime_ns=changed[name]) for name, file in manifest.files.items()}
    kept = replace(manifest, files=files)
    write_atomically(place / MANIFEST, kept.to_json())
    shutil.rmtree(work)
    return kept


def _link_or_copy(source: str, target: str) -> None:
    """Logs are copied, since they may be written to again."""
    is_log = LOGS in Path(source).parts
    with suppress(OSError):
        if not is_log:
            Path(target).hardlink_to(source)
            return
    shutil.copy2(source, target)


def output_digest(files: Mapping[str, StoredFile]) -> str:
    """SHA-256 over the sorted names and SHA-256s of the outputs."""
    lines = [f"{name}\0{file.sha256}" for name, file in sorted(files.items())]
    return sha256_of_text("\n".join(lines))


def _written_files(directory: Path) -> dict[str, StoredFile]:
    """Flush to disk what a stage left, and describe its outputs: all but logs and checkpoints."""
    files: dict[str, StoredFile] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name.split("/")[0] == CHECKPOINTS:
            continue
        if path.is_symlink():
            raise ValueError(f"a stage leaves plain files, but {name} is a link; write the file itself")
        fsync(path)
        if path.is_file() and name.split("/")[0] != LOGS:
            state = path.stat()
            files[name] = StoredFile(state.st_size, sha256_of(path), state.st_mtime_ns)
    if not files:
        raise ValueError(f"the stage finished, but left no file in {directory}")
    return files


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"a manifest names files below its directory, not {name}")
    return name
