"""The same client programs against this store, against Pravega and against Kafka: `python -m benchmarks.peers`.

Where to look, in the order data flows: `cases` says what is measured and what is wanted of it, `servers` and `kafka`
start the systems, `client_runs` runs one case and watches the server meanwhile, `rounds` alternates the systems,
`comparison` makes medians and ratios, `chart` draws them.
"""
