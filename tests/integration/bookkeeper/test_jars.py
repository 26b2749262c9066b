"""What was built for the client is all that it needs."""

import re
import shutil
import subprocess

import pytest

from tests.integration.java_libraries import missing
from tier1.bookkeeper.jars import Part, directory
from tier1.bookkeeper.local_ensemble import LocalEnsemble

pytestmark = pytest.mark.integration

_OF_THE_CLIENT = re.compile(r"org\.apache\.bookkeeper\.(client|proto|meta|discover|net|conf)\.")
_NOT_CALLED = {
    "lombok.Lombok": "what is left of an annotation",
    "org.apache.bookkeeper.client.BookKeeperAdmin": "of the servers' tools",
}


def test_no_class_that_the_client_needs_is_missing(ensemble: LocalEnsemble) -> None:
    """In a class that is missed on a rare way, an append waits for ever, and no error says so."""
    if shutil.which("jdeps") is None:
        missing("jdeps is missing, which a JDK has: nothing was looked for")
    jars = sorted((directory() / Part.CLIENT.value).glob("*.jar"))
    (server,) = [jar for jar in jars if jar.name.startswith("bookkeeper-server-")]
    others = ":".join(str(jar) for jar in jars if jar != server)
    found = subprocess.run(
        ["jdeps", "--multi-release", "base", "-verbose:class", "-classpath", others, str(server)],
        capture_output=True,
        text=True,
        check=True,
    )
    lacking: set[tuple[str, str]] = set()
    user = ""
    for line in found.stdout.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1] != "->" and words[0] != "->":
            user = words[0]
        if "not found" in line and "->" in words:
            lacking.add((user, words[words.index("->") + 1]))
    assert lacking, "jdeps says what only a bookie has: that is not here"
    client = {
        (user, needed)
        for user, needed in lacking
        if _OF_THE_CLIENT.match(user) and not {user, needed} & set(_NOT_CALLED)
    }
    assert not client
