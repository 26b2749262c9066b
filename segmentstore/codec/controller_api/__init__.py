"""The controller's gRPC messages: two .proto files, and what grpcio-tools makes of them.

`controller.proto` is Pravega's service, `staged_commits.proto` our own beside it.

    python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. segmentstore/codec/controller_api/controller.proto

The .pyi gets one line more at its top, because its types are looser than ours:

    # mypy: disable-error-code="type-arg, no-untyped-def"
"""

from typing import Final

SERVICE: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
OWN_SERVICE: Final = "segmentstore.controller.v1.StagedCommits"
"""Calls that Pravega's controller does not have."""
