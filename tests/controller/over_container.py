"""A controller whose segments and tables are those of one container."""

from random import Random

from containers.segment_container import StreamSegmentContainer
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.runtime.clock import SystemWallClock


def make_controller(container: StreamSegmentContainer) -> Controller:
    """Not started yet."""
    return Controller(
        segments=container,
        tables=container,
        wall_clock=SystemWallClock(),
        random=Random(5),
        locate=lambda name: Endpoint("127.0.0.1", 12345),
        settings=ControllerSettings(),
    )
