"""What the store knows about what it stores: `metadata=streams|segments|chunks|transactions|readerGroups`."""

from segmentstore.spark.metadata_tables.metadata_reader import MetadataReader
from segmentstore.spark.metadata_tables.table_schemas import metadata_schema

__all__ = ["MetadataReader", "metadata_schema"]
