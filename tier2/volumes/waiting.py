"""A change in the line, from the call that asked for it until that is answered."""

from asyncio import Future

from tier2.volumes.index_record import IndexRecord
from tier2.volumes.mutations import Mutation, SmallPut, Undigested
from tier2.volumes.new_objects import Prepared


class Waiting:
    """A mutation in the line, with the future of whoever asked."""

    __slots__ = ("ahead", "error", "future", "mutation", "size")

    def __init__(
        self, mutation: Mutation | Undigested | SmallPut, future: "Future[IndexRecord | None]"
    ) -> None:
        self.mutation = mutation
        self.size: int = mutation.size
        """Hashing does not change it."""
        self.future = future
        self.ahead: Prepared | None = None
        """What was made ready for it, and for its neighbours, while its group waited for another one."""
        self.error: BaseException | None = None
        """Why its bytes could not be hashed, or what is wrong with its description: it joins no group."""
