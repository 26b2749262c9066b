"""The generated messages are those of the .proto file, and the service that we answer is the one it declares."""

import subprocess
import sys
from pathlib import Path

import segmentstore
from segmentstore.codec.controller_api import controller_pb2

ROOT = Path(segmentstore.__file__).parent.parent
PROTO = "segmentstore/codec/controller_api/controller.proto"
TYPES = "segmentstore/codec/controller_api/controller_pb2.pyi"
TYPES_HEADER = '# mypy: disable-error-code="type-arg, no-untyped-def"\n'


def compile_proto(folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT), *options, PROTO]
    subprocess.run(command, cwd=folder, check=True)


def test_the_generated_module_describes_what_the_proto_file_says(tmp_path: Path) -> None:
    compile_proto(tmp_path, f"--python_out={tmp_path}")
    # The compiler's own version stands in the file; what it says of the messages must not differ.
    generated = (tmp_path / PROTO.replace(".proto", "_pb2.py")).read_text()
    committed = (ROOT / PROTO.replace(".proto", "_pb2.py")).read_text()
    assert _described(generated) == _described(committed)


def test_the_service_has_all_calls_of_the_protocol() -> None:
    service = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
    assert len(service.methods) == 46
    assert service.full_name == "io.pravega.controller.stream.api.grpc.v1.ControllerService"


def test_the_generated_types_are_those_of_the_proto_file(tmp_path: Path) -> None:
    compile_proto(tmp_path, f"--pyi_out={tmp_path}")
    assert TYPES_HEADER + (tmp_path / TYPES).read_text() == (ROOT / TYPES).read_text()


def _described(module: str) -> str:
    return next(line for line in module.splitlines() if "AddSerializedFile" in line)
