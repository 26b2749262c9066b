"""What the keepers of one name have in common: how far it is, and how it ends."""

from tests.controller.random_runs.random_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_runs.stream_model import Stage
from tests.controller.random_runs.theatre import Actor, Theatre


class Keeper(Actor):
    """Of one group, table or scope: nobody else creates or deletes it."""

    def __init__(self, theatre: Theatre, name: str) -> None:
        super().__init__(theatre, name)
        self._stage = Stage.ABSENT

    def owes(self) -> bool:
        return self._stage in (Stage.CREATING, Stage.DELETING)

    async def delete(self) -> None:
        """Ask for the end, or ask again; its stage says whether it came."""
        raise NotImplementedError

    async def come_to_an_end(self) -> None:
        """Nothing is left of it afterwards."""
        while self._stage is not Stage.ABSENT:
            try:
                await self.delete()
            except REQUEST_ERRORS as error:
                if not says_nothing(error):
                    raise
                await self.be_patient()
