"""The folder of a run: ``runs/<name>/``, where everything that belongs to it lies.

    config.yaml   the settings as they are in force, written by the controller; the log's own copy is the truth
    log/          the embedded server and the sealed segments       mark.json    how far the log had come
    blobs/        finished groups      weights/  published weights  checkpoints/  logs/  what the processes print

Rule 1: only its owner enters it: passwords and prompts lie there.
Rule 2: a used name is never begun anew; it is resumed.
Rule 3: workers find everything from the folder's path alone; a password never stands on a command line.
Rule 4: a server that other machines can reach has a password, or the run is refused.
"""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import yaml

from rollog.events.connection import Address
from rollog.events.redis_desk import RedisDesk
from rollog.events.server_url import mistake
from rollog.pipeline.config import Plan, without_password
from rollog.pipeline.durable import AlreadyThere, keep, new_folder, write_file
from rollog.pipeline.errors import PlanError

RUNS: Final = Path("runs")
"""Where runs lie, relative to the folder that rollog is started in."""

URL_VARIABLE: Final = "ROLLOG_REDIS_URL"
"""The server's address with its password, when the log is not embedded."""

EMBEDDED: Final = "embedded"


class UsedName(PlanError):
    """A run of this name exists."""


class NoSuchRun(PlanError):
    """No run of this name exists."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def create(cls, plan: Plan, runs: Path = RUNS) -> "RunFolder":
        """A new run's folder, with its settings in it, whole or not at all. Raises ``UsedName``."""
        try:
            with new_folder(runs) as path:
                path.chmod(0o700)
                made = cls(path)
                made.prepare()
                made.write_plan(plan)
                return cls(keep(path, plan.run))
        except AlreadyThere:
            raise UsedName(
                f"run={plan.run}: {runs / plan.run} exists. Go on with it (rollog resume {plan.run}), or choose "
                f"another name (run=...)."
            ) from None

    @classmethod
    def open(cls, name: str, runs: Path = RUNS) -> "RunFolder":
        """An existing run's folder. Raises ``NoSuchRun``."""
        folder = cls(runs / name)
        if not folder.config.is_file():
            known = sorted(path.parent.name for path in runs.glob("*/config.yaml")) if runs.is_dir() else []
            listed = f"There are: {', '.join(known)}." if known else f"There are no runs under {runs.resolve()}."
            raise NoSuchRun(f"no run named {name}. {listed}")
        folder.prepare()
        return folder

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The settings in force."""
        return self.path / "config.yaml"

    @property
    def log(self) -> Path:
        """The embedded server's folder, and the sealed segments."""
        return self.path / "log"

    @property
    def snapshots(self) -> Path:
        """Saved States; disposable."""
        return self.log / "snapshots"

    @property
    def blobs(self) -> Path:
        """Finished groups by content digest."""
        return self.path / "blobs"

    @property
    def weights(self) -> Path:
        """Published weights, one folder a version."""
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, one folder each."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """What the workers' processes print, and their process ids."""
        return self.path / "logs"

    def prepare(self) -> None:
        """Make what is missing."""
        for folder in (self.log, self.blobs, self.weights, self.checkpoints, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def plan(self) -> Plan:
        """The settings in force. Raises ``PlanError``, also for a file that is damaged."""
        try:
            settings = yaml.safe_load(self.config.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise self._damaged(" ".join(str(error).split())) from error
        if not isinstance(settings, dict):
            raise self._damaged(f"it holds {settings!r:.40} where settings are needed")
        return Plan.from_settings(settings, origin=str(self.config))

    def _damaged(self, why: str) -> PlanError:
        return PlanError(
            f"{self.config} cannot be read: {why}. Write it anew from the log's own copy of the settings:  "
            f"rollog state {self.name} --path settings > {self.config}"
        )

    def write_plan(self, plan: Plan) -> None:
        """Write the settings in force, whole or not at all."""
        write_file(self.config, yaml.safe_dump(plan.settings(), sort_keys=False, allow_unicode=True).encode())

    def address(self, plan: Plan, user: str) -> Address:
        """Where ``controller`` or ``worker`` finds the log's server."""
        if plan.log.redis == EMBEDDED:
            return Address.embedded(self.path, user)
        return Address.parse(server_url(plan))

    def desk(self, plan: Plan) -> RedisDesk:
        """A worker's connection."""
        return RedisDesk(self.address(plan, "worker"), plan.run)


def worker_environment(plan: Plan) -> dict[str, str]:
    """What workers are told beside the run's folder: the address with its password, when the log is not embedded."""
    return {} if plan.log.redis == EMBEDDED else {URL_VARIABLE: server_url(plan)}


def server_url(plan: Plan) -> str:
    """The address of a server that is not embedded: from the environment, which may hold the password, or the plan."""
    url = os.environ.get(URL_VARIABLE, plan.log.redis)
    if (wrong := mistake(url)) is not None:
        raise PlanError(f"{URL_VARIABLE}: {wrong}.")
    if without_password(url) != without_password(plan.log.redis):
        raise PlanError(
            f"{URL_VARIABLE} names {without_password(url)}, the run's log is at {without_password(plan.log.redis)}. "
            f"Correct one of them; they may differ in user and password only. If the server has moved, resume with "
            f"log.redis=ADDRESS."
        )
    if beyond_loopback(url) and not has_password(url):
        raise PlanError(
            f"log.redis={without_password(url)} is beyond this machine, and whoever reaches a server without a "
            f"password can rewrite the run. Give the server one (requirepass), and put the address with it into the "
            f"environment: {URL_VARIABLE}=redis://:PASSWORD@HOST:PORT/0"
        )
    return url


def beyond_loopback(url: str) -> bool:
    """Whether other machines can reach the server; not through a unix socket or over loopback."""
    parts = urlsplit(url)
    if parts.scheme == "unix" or parts.hostname == "localhost":
        return False
    try:
        return not ip_address(parts.hostname or "").is_loopback
    except ValueError:  # a name
        return True


def has_password(url: str) -> bool:
    """Whether a password stands in the address."""
    parts = urlsplit(url)
    return bool(parts.password or parse_qs(parts.query).get("password"))
