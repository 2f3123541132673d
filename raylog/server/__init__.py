"""The servers as plain classes: what the Ray actors wrap and the in-process cluster runs."""
