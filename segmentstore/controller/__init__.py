"""The controller: scopes, streams and their epochs, kept in table segments of the store itself."""
