"""Where MLflow keeps the files of new experiments."""

from pathlib import Path

from rloo_core.settings import TrackingSettings


def artifact_root(tracking: TrackingSettings, root: Path) -> str | None:
    """The artifact root as a URI; None where the tracking server decides.

    Args:
        tracking: `artifacts` is a directory or a URI such as s3://bucket/path, or None.
        root: The run root.
    """
    if tracking.artifacts is not None:
        given = tracking.artifacts
        return given if "://" in given else Path(given).expanduser().absolute().as_uri()
    on_a_server = (tracking.uri or "").startswith(("http://", "https://"))
    return None if on_a_server else (root.absolute() / "artifacts").as_uri()
