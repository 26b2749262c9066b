"""What the store knows about what it stores: `metadata=streams|segments|chunks|transactions|readerGroups`."""
