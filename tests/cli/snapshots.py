"""Snapshots as plain text files under snapshots/, at the path of their test."""

from pathlib import Path

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

ROOT = Path(__file__).parents[2]


class TextSnapshot(SingleFileSnapshotExtension):
    """One ``.txt`` a snapshot, whose difference can be read in a review."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"

    @classmethod
    def dirname(cls, *, test_location) -> str:
        test = Path(test_location.filepath).relative_to(ROOT / "tests")
        return str(ROOT / "snapshots" / test.with_suffix(""))

    def serialize(self, data, **_) -> str:
        return data
