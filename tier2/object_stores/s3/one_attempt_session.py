"""The HTTP session of the client library, without the repetition that lies below it.

aiohttp sends an idempotent request (PUT is one) a second time when a kept-alive connection turns out to be closed. For
a conditional put that is a hidden second attempt, whose answer is then that of the second and not of the first (H4).
"""

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession


class OneAttemptSession(AIOHTTPSession):  # type: ignore[misc] # the library has no types
    """One request is sent once."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        # aiohttp has no public switch for it; its own test client sets the same attribute.
        session._retry_connection = False
        return session
