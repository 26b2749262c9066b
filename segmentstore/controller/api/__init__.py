"""The gRPC face of the controller: decode, call, encode."""
