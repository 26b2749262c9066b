"""What every MetadataStore must do. Subclass MetadataStoreSuite and give it the fixture of VersionedValueSuite."""

from tests.contracts.versioned_value_suite import VersionedValueSuite
from tier1.bookkeeper.metadata_store import MetadataChangedError


class MetadataStoreSuite(VersionedValueSuite):
    """The conformance tests."""

    changed_error = MetadataChangedError
