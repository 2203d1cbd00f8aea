"""What nobody else may see of a run: its folder is closed to others, its server's passwords stay in their files."""

import stat
from contextlib import suppress
from pathlib import Path

from scene import Scene


def test_a_runs_folder_is_closed_to_others_and_its_passwords_are_told_to_nobody(scene: Scene) -> None:
    scene.settings["grpo"]["max_steps"] = 2
    scene.settings["generation"]["workers"] = 1
    scene.start()
    scene.wait_for(lambda state: state.version >= 1)
    log = scene.run / "log"
    secrets = [(log / f"{user}.password").read_text().strip().encode() for user in ("controller", "worker")]
    assert all(len(secret) == 64 for secret in secrets)
    for seen in seen_of_processes(scene):
        assert not [secret for secret in secrets if secret in seen]

    assert scene.finish() == 0, scene.output
    assert stat.S_IMODE(scene.run.stat().st_mode) == stat.S_IMODE(log.stat().st_mode) == 0o700
    written = [path for path in scene.folder.rglob("*") if path.is_file() and path.suffix != ".password"]
    assert scene.folder / "output" in written
    for path in written:
        held = path.read_bytes()
        assert not [path for secret in secrets if secret in held]


def seen_of_processes(scene: Scene) -> list[bytes]:
    """The command line and the environment of everybody in the run, as other users and their tools could see them."""
    workers = [scene.process(path.stem) for path in (scene.run / "logs").glob("*.pid")]
    seen = []
    for pid in [scene.controllers[-1].pid, *(worker.pid for worker in workers if worker is not None)]:
        for what in ("cmdline", "environ"):
            with suppress(OSError):  # it has ended
                seen.append(Path(f"/proc/{pid}/{what}").read_bytes())
    return seen
