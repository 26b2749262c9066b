"""Who lists names and compares."""

from segmentstore.codec.stream_names import mark_stream, reader_group_stream
from tests.controller.random_runs.stream_model import Stage
from tests.controller.random_runs.theatre import SCOPE, Actor, Theatre


class Lister(Actor):
    """Lists everything that can be listed; the ledger of names says what has to be there."""

    def __init__(self, theatre: Theatre) -> None:
        super().__init__(theatre, "lister")

    async def step(self) -> None:
        match self.random.randrange(3):
            case 0:
                await self._check_streams()
            case 1:
                began = self.ledger.tick()
                names = await self.theatre.listing.tables(SCOPE)
                self._judge("tables", self.theatre.tables.wrong(names, began))
            case _:
                began = self.ledger.tick()
                names = await self.theatre.listing.scopes()
                self._judge("scopes", self.theatre.scopes.wrong(names, began))

    async def _check_streams(self) -> None:
        """Streams of the keepers, with their mark streams; and the streams of groups."""
        there = (Stage.ACTIVE, Stage.SEALING, Stage.SEALED)
        before = {
            name: model for name, model in self.theatre.models.items() if model.stage in there
        }
        absent = [
            name for name, model in self.theatre.models.items() if model.stage is Stage.ABSENT
        ]
        absent_models = {name: self.theatre.models[name] for name in absent}
        groups = {n: p.since for n, p in self.theatre.groups.names.items() if p.there}
        names = await self.theatre.listing.streams(SCOPE)
        if names != sorted(set(names)):
            self._judge("streams", f"not in order {names}")
        for name, model in before.items():
            if model.stage in there and self.theatre.models[name] is model:
                for each in (name, mark_stream(name)):
                    if each not in names:
                        self._judge("streams", f"{each} is missing in {names}")
        for name, model in absent_models.items():
            if model.stage is Stage.ABSENT and name in names:
                self._judge("streams", f"{name} is listed, and absent")
        for group, since in groups.items():
            presence = self.theatre.groups.of(group)
            if presence.since == since and reader_group_stream(group) not in names:
                self._judge("streams", f"the state of {group} is missing in {names}")

    def _judge(self, what: str, wrong: str) -> None:
        if wrong:
            raise self.breach(f"{what}: {wrong}")
