"""The same client programs against this store, against Pravega and against Kafka: `python -m benchmarks.peers`.

Where to look, in the order data flows: `cases` says what is measured and what is wanted of it, `systems` starts the
systems, `runs` runs the cases on each in turn and watches the servers meanwhile, `report` makes medians and ratios and
draws them.
"""
