"""What a seed decides about a run: the machine, the controller over it, and who uses it. Values only."""

from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from segmentstore.controller.settings import (
    AutoScaleSettings,
    ControllerSettings,
    KeyValueTableSettings,
    ReaderGroupSettings,
    RetentionSettings,
    StreamSettings,
    TransactionSettings,
    WatermarkSettings,
)
from tests.sim.settings import QUIET_STORE, Swarm, draw_swarm

LEASE_MS_MAX = 20_000
"""The longest lease that a client of these worlds asks for."""


class Theme(Enum):
    """What a world is about, if not about everything: few things done often, in one that is quick."""

    TRUNCATIONS = "truncations"
    """Streams are scaled and truncated beside transactions, while single containers stay down for a while."""
    RESETS = "resets"
    """A group consumes, is reset, and streams are retained."""
    RECREATIONS = "recreations"
    """Streams are deleted and created again beside transactions, while the table of transactions answers late."""


@dataclass(frozen=True, slots=True)
class LifeSettings:
    """One world. Times in seconds. What a themed seed draws depends on the names of this class and of its fields."""

    swarm: Swarm
    controller: ControllerSettings
    stream_count: int
    """Streams with a keeper each, in one scope."""
    writers_per_stream: int
    transactors_per_stream: int
    think_seconds_mean: float
    life_seconds_mean: float
    """How long a stream lives until its keeper seals it."""
    steps_max: int
    """Of each actor; a step is one call or a few."""
    event_bytes_max: int
    jobs_per_stream: int
    """Applications that stage transactions and commit them together."""
    retains: bool
    """Streams have policies."""
    notes_times: bool
    """Writers note times."""
    burst_max: int
    """Events that a writer has under way."""
    container_stop: float
    """How often, among the troubles, one container is stopped and starts again."""
    hand_over: float
    """How often a trouble is this one instead: another process gets the containers, and gives them back to the first
    one, which lived on."""
    theme: Theme | None = None
    container_down_seconds_mean: float = 0.0
    """How long one of the containers that a commit needs stays down, which is stopped when the commit is asked for; 0
    if none is."""
    # Not part of what the draws of a theme are seeded with: those of the others are what they were.
    late_answer: float = field(default=0.0, repr=False)
    """How often the table of transactions answers a removal late."""
    late_answer_seconds_mean: float = field(default=0.0, repr=False)


def draw_settings(random: Random) -> LifeSettings:
    """The world of a seed."""
    swarm = draw_swarm(random)
    mine = Random(f"a life over {swarm}")
    slow = 1 + 100 * swarm.trouble.job_seconds_mean
    swarm = replace(
        swarm,
        node=replace(
            swarm.node,
            active_segments_max=mine.choice((40, 100, 1000)),
            frame_operations_max=max(2, swarm.node.frame_operations_max),
            # One slow worker for a memory that holds nothing: such a world never gets anywhere.
            executor_workers=swarm.node.executor_workers if slow < 5 else 0,
            maintenance_seconds=1.0,  # as there are no long troubles to wait for
        ),
        trouble=replace(
            swarm.trouble,
            seconds=swarm.trouble.seconds * slow,
            event_seconds_mean=swarm.trouble.event_seconds_mean * slow,
            # Longer ones only cost time here: tests/sim has them.
            pause_seconds_max=min(10.0, swarm.trouble.pause_seconds_max),
            store_down_seconds_max=min(30.0, swarm.trouble.store_down_seconds_max),
        ),
    )
    notes_times = mine.random() < 0.5
    return LifeSettings(
        swarm=swarm,
        controller=_draw_controller(mine, slow),
        stream_count=mine.choice((1, 2, 3)),
        writers_per_stream=2 if notes_times else mine.choice((1, 2)),
        transactors_per_stream=mine.choice((1, 2)),
        think_seconds_mean=mine.choice((0.005, 0.02, 0.1)) * slow,
        life_seconds_mean=mine.choice((0.5, 2.0, 100.0)) * slow,
        steps_max=mine.choice((20, 40)),
        event_bytes_max=mine.choice((10, 60, 500)),
        burst_max=mine.choice((1, 4, 10)),
        container_stop=mine.choice((0.0, 0.3)),
        jobs_per_stream=mine.choice((0, 1)),
        retains=mine.random() < 0.5,
        notes_times=notes_times,
        # Drawn last: the other draws of a seed do not depend on it.
        hand_over=mine.choice((0.0, 0.3, 0.6)),
    )


def draw_themed_settings(random: Random, theme: Theme) -> LifeSettings:
    """The world of a seed that is about one thing."""
    drawn = draw_settings(random)
    mine = Random(f"a life about {theme.value} over {drawn}")
    quick = 0.0002
    swarm = replace(
        drawn.swarm,
        node=replace(drawn.swarm.node, executor_workers=0),
        trouble=replace(
            drawn.swarm.trouble,
            seconds=3.0,
            event_seconds_mean=2.0,
            job_seconds_mean=quick,
            pause_seconds_max=0.5,
            store_down_seconds_max=1.0,
            # What steps explains too much.
            clock_step=0.0,
        ),
    )
    themed = replace(
        drawn,
        swarm=swarm,
        controller=_draw_controller(mine, 1.0),
        stream_count=1,
        think_seconds_mean=0.01,
        life_seconds_mean=100.0,
        steps_max=60,
        event_bytes_max=10,
        jobs_per_stream=0,
        retains=False,
        notes_times=False,
        writers_per_stream=1,
        container_stop=0.0,
        hand_over=0.0,
        theme=theme,
    )
    match theme:
        case Theme.TRUNCATIONS:
            # Between the return of a container and the next attempt of a commit is time to truncate.
            pause = mine.choice((0.3, 1.0))
            controller = replace(
                themed.controller,
                transactions=replace(
                    themed.controller.transactions, retry_seconds_min=pause, retry_seconds_max=pause
                ),
            )
            return replace(
                themed,
                swarm=replace(
                    swarm,
                    node=replace(swarm.node, container_count=4),
                    trouble=replace(swarm.trouble, event_seconds_mean=4.0),
                ),
                controller=controller,
                transactors_per_stream=4,
                container_down_seconds_mean=0.1,
            )
        case Theme.RESETS:
            retention = replace(
                themed.controller.retention,
                interval_seconds=mine.choice((0.1, 0.3)),
                clock_settle_seconds=0.1,
            )
            return replace(
                themed,
                controller=replace(themed.controller, retention=retention),
                retains=True,
                transactors_per_stream=1,
            )
        case Theme.RECREATIONS:
            # A sweep that waits for one stream's removals has listed the others long ago when it comes to them.
            transactions = replace(
                themed.controller.transactions,
                completed_seconds=0.02,
                completed_sweep_seconds=0.1,
                forget_seconds=0.01,
                retry_seconds_max=0.1,
            )
            return replace(
                themed,
                swarm=replace(
                    swarm,
                    trouble=replace(
                        swarm.trouble, seconds=3.0, event_seconds_mean=4.0, store=QUIET_STORE
                    ),
                ),
                controller=replace(themed.controller, transactions=transactions),
                stream_count=3,
                writers_per_stream=0,
                transactors_per_stream=3,
                life_seconds_mean=0.3,
                steps_max=300,
                late_answer=0.2,
                late_answer_seconds_mean=mine.choice((0.3, 1.0)),
            )


def _draw_controller(random: Random, slow: float) -> ControllerSettings:
    return ControllerSettings(
        streams=StreamSettings(
            names_per_page=random.choice((1, 2, 100)),
            segment_steps_at_once_max=random.choice((1, 2, 32)),
            records_per_batch_max=random.choice((1, 3, 500)),
        ),
        transactions=TransactionSettings(
            lease_ms_min=random.choice((100, 1_000)),
            lease_ms_max=LEASE_MS_MAX,
            completed_seconds=random.choice((0.02, 5.0, 3_600.0)),
            completed_sweep_seconds=random.choice((0.1, 2.0)),
            commits_together_max=random.choice((1, 2, 64)),
            forget_seconds=random.choice((0.01, 1.0)),
            forget_together_max=random.choice((2, 64)),
            load_page_entries=random.choice((1, 3, 1_000)),
        ),
        reader_groups=ReaderGroupSettings(names_per_read=random.choice((1, 100))),
        key_value_tables=KeyValueTableSettings(listed_per_page=random.choice((1, 2, 100))),
        auto_scale=AutoScaleSettings(
            interval_seconds=0.5,
            windows_seconds=(1.0, 2.0),
            hot_factors=(1.0,),
            cool_down_seconds=1.0,
            refresh_seconds=2.0,
        ),
        retention=RetentionSettings(
            interval_seconds=random.choice((0.03, 0.1, 0.3)) * slow,
            cuts_per_stream_max=random.choice((3, 256)),
            clock_settle_seconds=random.choice((0.1, 2.0)),
            clock_look_seconds=0.1,
        ),
        watermarks=WatermarkSettings(
            interval_seconds=random.choice((0.02, 0.1, 1.0)) * slow,
            silent_seconds_default=random.choice((0.1, 1.0)) * slow,
            watermarks_kept=3,
        ),
    )
