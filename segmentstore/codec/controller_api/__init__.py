"""The controller's gRPC messages: controller.proto, and what grpcio-tools makes of it.

    python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. segmentstore/codec/controller_api/controller.proto

The .pyi gets one line more at its top, because its types are looser than ours:

    # mypy: disable-error-code="type-arg, no-untyped-def"
"""
