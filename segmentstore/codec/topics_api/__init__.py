"""Messages of topics over gRPC: `topics.proto`, and what the protocol buffer compiler makes of it.

    python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. segmentstore/codec/topics_api/topics.proto

The .pyi gets one line more at its top, because its types are looser than ours:

    # mypy: disable-error-code="type-arg, no-untyped-def"

Invariant: fields are added, and never renumbered: clients are generated from the file and kept for years.
"""
