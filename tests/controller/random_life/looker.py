"""Readers: whatever they see has to fit what everybody was told."""

from tests.controller.random_life.theatre import Actor, Theatre

_SEGMENTS_AT_ONCE = 5


class Looker(Actor):
    """Reads some stream that exists."""

    def __init__(self, theatre: Theatre, number: int) -> None:
        super().__init__(theatre, f"looker {number}")

    async def step(self) -> None:
        lives = self.theatre.readable()
        if not lives:
            return
        life = self.random.choice(lives)
        reading = self.theatre.reading
        match self.random.randrange(9):
            case 0:
                await reading.learn_current(life)
            case 1:
                await reading.learn_epochs(life)
            case 2:
                await reading.learn_head(life)
            case 3:
                await reading.walk(life)
            case 4:
                await reading.ask_early(life)
            case 5 | 6 if life.times.writers:
                silent = self.theatre.settings.controller.watermarks.silent_seconds_default
                await reading.read_times(life, silent_seconds=silent)
            case _:
                count = min(_SEGMENTS_AT_ONCE, len(life.ranges))
                for segment_id in self.random.sample(list(life.ranges), count):
                    await reading.read_segment(life, segment_id)
