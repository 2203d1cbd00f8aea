"""The append-only files of a run's server, kept as they were, to be put back and damaged."""

import shutil
from pathlib import Path


class ServerFiles:
    """Made while no server runs; the copy of the files lies beside the server's folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "log" / "appendonlydir"
        self._kept = run_folder / "kept"
        shutil.copytree(self.folder, self._kept)
        self.whole = self.last.read_bytes()

    @property
    def last(self) -> Path:
        """The file that the server appends to."""
        return last_file(self.folder)

    @property
    def last_block(self) -> bytes:
        """The commands of the last append."""
        return self.whole[self.whole.rindex(b"*1\r\n$5\r\nMULTI\r\n") :]

    def put_back(self, last: bytes | bytearray) -> None:
        """All files as they were kept, but for the last one."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._kept, self.folder)
        self.last.write_bytes(last)


def last_file(folder: Path) -> Path:
    """The file in ``appendonlydir`` that the server appends to: the one with the highest number."""
    return max(folder.glob("*.incr.aof"), key=lambda file: int(file.name.split(".")[-3]))
