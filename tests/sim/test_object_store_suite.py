"""With faults off, the simulated object store is an object store like any other."""

from tests.contracts.object_store_suite import ObjectStoreSuite
