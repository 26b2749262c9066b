"""The gRPC server of the controller: decode, call, encode."""
