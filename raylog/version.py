"""The version of raylog."""

VERSION = "0.1.0"
