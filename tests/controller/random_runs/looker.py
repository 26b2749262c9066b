"""Readers: whatever they see has to fit what everybody was told."""

from tests.controller.random_runs.theatre import Actor, Theatre

_SEGMENTS_AT_ONCE = 5


class Looker(Actor):
    """Reads some stream that exists."""

    def __init__(self, theatre: Theatre, number: int) -> None:
        super().__init__(theatre, f"looker {number}")

    async def step(self) -> None:
        models = self.theatre.readable()
        if not models:
            return
        model = self.random.choice(models)
        reading = self.theatre.reading
        match self.random.randrange(9):
            case 0:
                await reading.learn_current(model)
            case 1:
                await reading.learn_epochs(model)
            case 2:
                await reading.learn_head(model)
            case 3:
                await reading.walk(model)
            case 4:
                await reading.ask_early(model)
            case 5 | 6 if model.times.writers:
                silent = self.theatre.settings.controller.watermarks.silent_seconds_default
                await reading.read_times(model, silent_seconds=silent)
            case _:
                count = min(_SEGMENTS_AT_ONCE, len(model.ranges))
                for segment_id in self.random.sample(list(model.ranges), count):
                    await reading.read_segment(model, segment_id)
