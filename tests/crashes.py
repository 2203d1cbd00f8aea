"""What can die at a moment of a played run, once."""

from collections.abc import Callable

from play import Play
from rollog.events.errors import LogUncertain
from rollog.pipeline.simulate import Death
from watched_log import Moment


class Once:
    """Does something the first time that a moment comes."""

    def __init__(self, moment: Moment, do: Callable[[Play], None]) -> None:
        self.moment, self.do, self.struck = moment, do, False

    def __call__(self, play: Play, moment: Moment) -> None:
        if moment == self.moment and not self.struck:
            self.struck = True
            self.do(play)


def controller_dies(play: Play) -> None:
    raise Death


def reply_is_lost(play: Play) -> None:
    raise LogUncertain("played: no answer in time")


def trainer_dies(play: Play) -> None:
    play.kill_trainer()


def generator_dies(play: Play) -> None:
    play.kill_generator()


def everything_dies(play: Play) -> None:
    play.kill_trainer()
    play.kill_generator()
    raise Death


BLOWS = [controller_dies, reply_is_lost, trainer_dies, generator_dies, everything_dies]
