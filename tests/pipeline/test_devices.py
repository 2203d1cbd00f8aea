"""Who gets which GPU of one machine."""

import pytest

from rollog.pipeline.launch.devices import Devices

EIGHT = tuple("01234567")


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (Devices(gpus=EIGHT, ranks=4, per_generator=1), {"rank-0": "0", "rank-3": "3", "gen-0": "4", "gen-3": "7"}),
        (Devices(gpus=EIGHT, ranks=4, per_generator=2), {"rank-3": "3", "gen-0": "4,5", "gen-1": "6,7"}),
        (Devices(gpus=("2", "5"), ranks=1, per_generator=1), {"rank-0": "2", "gen-0": "5", "gen-1": "2"}),
        (Devices(gpus=("0",), ranks=1, per_generator=1), {"rank-0": "0", "gen-0": "0"}),
        (Devices(gpus=EIGHT, ranks=0, per_generator=1), {"rank-0": None, "gen-0": "0", "gen-1": "1"}),
        (Devices(gpus=EIGHT, ranks=2, per_generator=0), {"rank-1": "1", "gen-0": None}),
        (Devices(ranks=2, per_generator=1), {"rank-0": None, "gen-0": None}),
    ],
)
def test_ranks_come_first_then_generators_and_who_finds_none_left_shares(
    devices: Devices, expected: dict[str, str | None]
) -> None:
    assert {name: devices.variables(name).get("CUDA_VISIBLE_DEVICES") for name in expected} == expected
