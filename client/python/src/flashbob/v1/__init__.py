"""The contract's messages, made by generate.sh from proto/flashbob/v1."""
