"""Authorisation at a Broker's listener: what each API asks for, and how a denial is told."""
