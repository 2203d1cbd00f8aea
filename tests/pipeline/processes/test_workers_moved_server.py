"""The log's server moves to another address between two controllers."""

import select
import shutil
import socket
import subprocess
import time
from contextlib import closing, contextmanager

import pytest

from rollog.events.connection import Address, Patience
from rollog.events.server import shipped_binary
from rollog.events.vocabulary import Configure
from scene import ROLLOG

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@contextmanager
def served(folder):
    """The server of this data folder, on some port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(exist_ok=True)
    settings = (
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nappendonly yes\nappendfsync always\n"
        'save ""\nmaxmemory-policy noeviction\nauto-aof-rewrite-percentage 0\n'
    )
    with subprocess.Popen([shipped_binary(), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        try:
            run.stdin.write(settings)
            run.stdin.close()
            url = f"redis://127.0.0.1:{port}/0"
            with closing(Address.parse(url).connect()) as connection:
                Patience(20).insist(lambda: connection.call("PING"))
            yield url
        finally:
            run.terminate()


def until_said(scene, text):
    deadline = time.monotonic() + scene.within_s
    while text not in scene.output:
        assert scene.controllers[-1].poll() is None, scene.output
        assert time.monotonic() < deadline, scene.output
        select.select([], [], [], 0.05)


def test_a_resume_finds_the_log_at_its_new_address_and_refuses_a_server_that_does_not_hold_it(scene, tmp_path):
    def rollog(*words):
        return subprocess.run(
            [*ROLLOG, *words], cwd=scene.folder, capture_output=True, text=True, check=False, timeout=200
        )

    scene.settings["data"]["epochs"] = 10_000
    del scene.settings["grpo"]["max_steps"]
    with served(tmp_path / "data") as first:
        scene.settings["log"] = {"redis": first}
        scene.start()
        until_said(scene, "step 3/")
        scene.controllers[-1].terminate()
        assert scene.finish() == 75, scene.output
    shutil.copytree(tmp_path / "data", tmp_path / "moved")

    with served(tmp_path / "empty") as other:
        refused = rollog("resume", "demo", f"log.redis={other}")
    assert refused.returncode in (4, 5), refused.stderr
    with served(tmp_path / "moved") as second:
        assert rollog("resume", "demo").returncode == 4
        resumed = rollog("resume", "demo", f"log.redis={second}", "--dry-run")
        assert resumed.returncode == 0, resumed.stderr
        assert f"log.redis = '{second}'" in resumed.stderr
        scene.overrides = [f"log.redis={second}"]
        scene.start()
        until_said(scene, "step 9/")
        scene.controllers[-1].terminate()
        assert scene.finish() == 75, scene.output

    assert scene.events(Configure)[0].changes == {"log.redis": second}
    trained = scene.trained()
    assert trained == {step: set(range(4 * step, 4 * step + 4)) for step in range(len(trained))}
    assert len(trained) >= 9
