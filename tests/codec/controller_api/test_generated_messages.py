"""The generated messages are those of the .proto files, and the services that we answer are those they declare."""

import subprocess
import sys
from pathlib import Path

import pytest

import segmentstore
from segmentstore.codec.controller_api import controller_pb2, staged_commits_pb2

ROOT = Path(segmentstore.__file__).parent.parent
FOLDER = "segmentstore/codec/controller_api"
TYPES_HEADER = '# mypy: disable-error-code="type-arg, no-untyped-def"\n'

names = pytest.mark.parametrize("name", ["controller", "staged_commits"])


def compile_proto(name: str, folder: Path, *options: str) -> None:
    proto = f"{FOLDER}/{name}.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT), *options, proto]
    subprocess.run(command, cwd=folder, check=True)


@names
def test_the_generated_module_describes_what_the_proto_file_says(name: str, tmp_path: Path) -> None:
    compile_proto(name, tmp_path, f"--python_out={tmp_path}")
    # The compiler's own version stands in the file; what it says of the messages must not differ.
    module = f"{FOLDER}/{name}_pb2.py"
    assert _described((tmp_path / module).read_text()) == _described((ROOT / module).read_text())


def test_the_service_has_all_calls_of_the_protocol() -> None:
    service = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
    assert len(service.methods) == 46
    assert service.full_name == "io.pravega.controller.stream.api.grpc.v1.ControllerService"


def test_calls_of_our_own_have_a_service_of_their_own() -> None:
    service = staged_commits_pb2.DESCRIPTOR.services_by_name["StagedCommits"]
    assert service.full_name == "segmentstore.controller.v1.StagedCommits"
    assert [each.name for each in service.methods] == ["beginStage", "commitStages", "lastVersion"]


@names
def test_the_generated_types_are_those_of_the_proto_file(name: str, tmp_path: Path) -> None:
    compile_proto(name, tmp_path, f"--pyi_out={tmp_path}")
    types = f"{FOLDER}/{name}_pb2.pyi"
    assert TYPES_HEADER + (tmp_path / types).read_text() == (ROOT / types).read_text()


def _described(module: str) -> str:
    return next(line for line in module.splitlines() if "AddSerializedFile" in line)
